#include <caf/actor_system.hpp>
#include <caf/send.hpp>

#include "actors/actor_shell.h"
#include "devices/base/check.h"
#include "devices/host_memory.h"
#include "runtime/verify/verify.h"
#include "runtime/worker/worker_impl.h"

namespace troupe::runtime {

Status Worker::Impl::check_ops() const {
  for (const auto& a : local.actors)
    for (const auto& op : plan_actor(a).ops)
      if (plan_actor(a).kind == PlanActor::Kind::user && !env.user_actors->count(op.op))
        return invalid("actor '" + op.name + "' is of kind '" + op.op + "', which this program does not register");
  return runtime::check_ops(plan, local.stage, *env.ops);
}

ConductorSpec Worker::Impl::conductor_spec() {
  ConductorSpec spec;
  spec.order.step_program = plan.step_program();
  spec.order.closers = local.closers;
  for (std::int32_t p = 0; p < std::ssize(plan.programs); ++p) spec.order.begun_as.push_back(plan.begun_as(p));
  spec.fed.assign(plan.programs.size(), false);
  for (const auto& r : plan.roles)
    for (const auto& c : r.channels)
      if (!c.after.empty() || c.lag > 0) spec.fed[c.program] = true;
  for (std::size_t i = 0; i < local.channels.size(); ++i) {
    const PlanChannel& c = plan_channel(static_cast<std::int32_t>(i));
    if (c.writer >= 0) continue;
    ConductorChannel out{
        c.kind, c.name, c.program,
        actors::ControlChannel(c.name, c.slots, local.channels[i].readers, memory(static_cast<std::int32_t>(i)))};
    spec.channels.emplace(static_cast<std::int32_t>(i), std::move(out));
    if (c.kind == PlanChannel::Kind::feed) {
      const PlanTensor& t = plan.tensors[c.tensors[0]];
      spec.order.feeds.push_back({c.name, c.program, static_cast<std::size_t>(elements(t.shape) * size_of(t.dtype)),
                                  plan.owners_of(c.program, local.stage).microbatches(local.dp_index)});
    }
  }
  spec.busy_ns = busy_ns;
  spec.order.exponents = plan.trains() ? plan.params.size() : 0;
  spec.order.commits = plan.training().size();
  spec.square_sums = gradients.square_sums;
  spec.peaks = gradients.peaks;
  spec.on_commit = [stalls = stalls, clock = env.clock, kept = plan.keeps_version() ? 1 : 0,
                    guard = guard](std::int64_t step) {
    stalls->committed(step - kept, clock->now_ns());
    if (guard) guard->committed(step);
  };
  spec.on_begin = [this](const BeginRun& begin) {
    begin_with(begin.step, begin.exponents);
    wanted.insert(begin.wanted.begin(), begin.wanted.end());
    if (guard) guard->begin(begin.step);
  };
  spec.send = env.send;
  if (guard) spec.send = [this](FromWorker message) { send(std::move(message)); };
  return spec;
}

/// Transfers under way at the same time, each of them mostly waiting.
constexpr int disk_threads = 4;

Status Worker::Impl::build() {
  TROUPE_TRY(check_ops());
  gradients = gradient_order(plan, local.rank);
  pool = env.pool;
  if (!pool) {
    TROUPE_ASSIGN(own_pool, env.device->allocate_pinned(static_cast<std::size_t>(local.pool_bytes)));
    pool = own_pool.get();
  }
  if (env.device_ops) {
    TROUPE_ASSIGN(device_pool, env.device->allocate(static_cast<std::size_t>(local.pool_bytes)));
    TROUPE_TRY(take_op_scratch());
  }
  REQUIRE(static_cast<std::int64_t>(pool->size()) >= local.pool_bytes, pool->size(), local.pool_bytes);
  if (local.arena_bytes > 0) {
    TROUPE_ASSIGN(arena, env.device->allocate_pinned(static_cast<std::size_t>(local.arena_bytes)));
  }
  if (local.copies_bytes > 0) {
    copies = env.copies;
    if (!copies) {
      TROUPE_ASSIGN(own_copies, allocate_host(static_cast<std::size_t>(local.copies_bytes)));
      copies = own_copies.get();
    }
    REQUIRE(static_cast<std::int64_t>(copies->size()) >= local.copies_bytes, copies->size(), local.copies_bytes);
  }
  REQUIRE(!copies || !env.adopt || !env.home.areas.empty(), local.rank);  // nothing lies in the pool
  places = state_places(plan, local);
  if (env.adopt && !env.home.areas.empty() && HealingSources(plan, env.home).takes(local.rank)) {
    if (!copies) clear_versions(plan, local, pool->data());
    TROUPE_ASSIGN(const HealedBytes bytes, heal(plan, local, pool->data(), env.home, *env.adopt, [this] {
                    ++*env.progress;
                    return !env.leaves || !env.leaves();
                  }));
    healed_bytes = bytes.other;
  } else if (env.adopt) {
    TROUPE_TRY(adopt(*env.adopt));
    adopted = true;
  } else {
    if (env.pool || env.copies) forget_versions(plan, local, kept());
    if (env.restore.empty()) initialise_parameters();
  }
  clear_op_state();
  TROUPE_TRY(make_shards());
  streams["compute"] = env.device->create_stream("compute", env.threads);
  streams["comm"] = host().create_stream("comm", 1);
  streams["host"] = host().create_stream("host", 1);
  for (const auto& a : local.actors)
    if (const std::string own = stream_of(plan_actor(a)); streams.count(own) == 0 && plan_actor(a).waits())
      streams[own] = host().create_stream(own, 1);
  if (shards || copies || env.guard.on()) streams["snapshot"] = env.device->create_stream("snapshot", 1);
  if (shards || (!env.restore.empty() && !env.adopt)) streams["disk"] = host().create_stream("disk", disk_threads);
  if (arena) {
    Task populate;  // else page faults slow down the first copies, and updates wait for them
    populate.name = "populate the arena";
    populate.work = [this](Parallel&) { arena->populate(); };
    streams["disk"]->submit(std::move(populate));  // copies are waited for, which share the stream of snapshots
  }
  TROUPE_TRY(make_guard());
  conductor = env.system->spawn<Conductor>(conductor_spec());
  for (const auto& a : local.actors) {
    auto made = executor(a);
    if (!made.ok()) return made.status();
    actors.push_back(env.system->spawn<actors::ActorShell>(a.spec, *std::move(made), env.trace));
  }
  env.transport->on_peer_down([this](Rank rank, Status s) { caf::anon_send(conductor, PeerDown{rank, std::move(s)}); });
  if (env.may_send) env.may_send();
  caf::anon_send(conductor, actors::Wire{actors, conductor});
  for (const auto& a : actors) caf::anon_send(a, actors::Wire{actors, conductor});
  return {};
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Worker::~Worker() {
  stop();
  impl_->quiesce_streams();
}

Expected<std::unique_ptr<Worker>> Worker::create(const Plan& plan, Rank rank, WorkerEnv env) {
  auto impl = std::make_unique<Impl>();
  impl->plan = plan;
  TROUPE_ASSIGN(impl->local, local_plan(impl->plan, rank));
  impl->env = std::move(env);
  std::unique_ptr<Worker> worker(new Worker(std::move(impl)));
  TROUPE_TRY(worker->impl_->build());
  return worker;
}

void Worker::start() {
  Impl& impl = *impl_;
  const std::int64_t begin_ns = impl.env.clock->now_ns();
  auto done = [&impl, send = impl.env.send, clock = impl.env.clock, begin_ns](const Expected<std::int64_t>& restored,
                                                                              std::int64_t healed) {
    if (!restored.ok()) return send(WorkerFailed{"", restored.status()});
    impl.upload_parameters([send, clock, begin_ns, restored = *restored, healed] {
      send(Ready{restored, static_cast<double>(clock->now_ns() - begin_ns) * 1e-9, healed});
    });
  };
  const TransferEnv transfer = impl.transfer_env();
  if (impl.env.adopt && !impl.env.home.machines.empty()) {
    impl.stop_restoring = heal_across(impl.plan, impl.local, impl.pool->data(), impl.env.home, *impl.env.adopt,
                                      transfer,
                                      [done, healed = impl.healed_bytes](const Expected<std::int64_t>& bytes) {
                                        if (bytes.ok()) done(std::int64_t{0}, healed + *bytes);
                                        else done(bytes.status(), healed);
                                      });
    return;
  }
  if (impl.env.adopt || impl.env.restore.empty()) return done(std::int64_t{0}, impl.healed_bytes);
  if (!impl.env.storage) return done(invalid("there is no storage to restore from"), 0);
  impl.stop_restoring = restore(impl.plan, impl.local.rank, impl.env.restore, impl.restore_places(),
                                RestoreEnv{*impl.env.storage, *impl.streams.at("disk"), transfer},
                                [done](const Expected<std::int64_t>& bytes) { done(bytes, 0); });
}

void Worker::handle(ToWorker message) { caf::anon_send(impl_->conductor, SessionSays{std::move(message)}); }

void Worker::Impl::quiesce_streams() {
  // A task of `compute` that has updated a share, or of `disk` that has read a part of a checkpoint, begins an exchange
  // as it ends.
  for (auto& [name, stream] : streams)
    if (name != "comm") stream->quiesce();
  if (const auto comm = streams.find("comm"); comm != streams.end()) comm->second->quiesce();
}

void Worker::stop() {
  if (impl_->stopped) return;
  impl_->stopped = true;
  impl_->stop_restoring();
  if (impl_->guard) impl_->guard->stop();
  impl_->env.transport->shutdown();
  impl_->quiesce_streams();
  for (auto& a : impl_->actors) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  if (impl_->conductor) caf::anon_send_exit(impl_->conductor, caf::exit_reason::user_shutdown);
}

const LocalPlan& Worker::local() const { return impl_->local; }

std::vector<HeldVersion> Worker::held() const { return held_versions(impl_->plan, impl_->local, impl_->kept()); }

}  // namespace troupe::runtime
