#include <algorithm>
#include <caf/actor_system.hpp>
#include <caf/send.hpp>

#include "actors/communicator.h"
#include "actors/optimizer.h"
#include "actors/segment.h"
#include "actors/update_then_gather.h"
#include "devices/base/philox.h"
#include "runtime/session/sum_scale.h"
#include "runtime/verify/verify.h"
#include "runtime/worker/worker_impl.h"

namespace troupe::runtime {

namespace {

/// Counts acts (a worker's progress), or the time that the compute stream is busy (for the metrics).
class Metered final : public actors::Executor {
 public:
  using Counter = std::shared_ptr<std::atomic<std::int64_t>>;
  Metered(std::shared_ptr<actors::Executor> inner, Counter busy_ns, Counter acts)
      : inner_(std::move(inner)), busy_ns_(std::move(busy_ns)), acts_(std::move(acts)) {}
  void submit(actors::ActContext c, std::function<void()> started, std::function<void(actors::ActDone)> done) override {
    inner_->submit(std::move(c), std::move(started), [busy = busy_ns_, acts = acts_, done = std::move(done)](actors::ActDone d) {
      if (busy) *busy += d.end_ns - d.begin_ns;
      if (acts) ++*acts;
      done(std::move(d));
    });
  }

 private:
  std::shared_ptr<actors::Executor> inner_;
  Counter busy_ns_, acts_;   ///< either may be none
};

/// Tells the StallMeter when a snapshot's copies end.
class Copying final : public actors::Executor {
 public:
  Copying(std::shared_ptr<actors::Executor> inner, std::shared_ptr<StallMeter> stalls) : inner_(std::move(inner)), stalls_(std::move(stalls)) {}
  void submit(actors::ActContext c, std::function<void()> started, std::function<void(actors::ActDone)> done) override {
    const auto version = c.step;
    inner_->submit(std::move(c), std::move(started), [stalls = stalls_, version, done = std::move(done)](actors::ActDone d) {
      stalls->copied(version, d.end_ns);
      done(std::move(d));
    });
  }

 private:
  std::shared_ptr<actors::Executor> inner_;
  std::shared_ptr<StallMeter> stalls_;
};

/// Passes time, computes nothing: for schedules on the paced device.
class IdleBody final : public actors::Body {
 public:
  Status run(const actors::ActContext&, Parallel&) override { return {}; }
};

}  // namespace

Status Worker::Impl::check_ops() const {
  for (const auto& a : local.actors)
    for (const auto& op : plan_actor(a).ops)
      if (plan_actor(a).kind == PlanActor::Kind::user && !env.user_actors->count(op.op))
        return invalid("actor '" + op.name + "' is of kind '" + op.op + "', which this program does not register");
  return runtime::check_ops(plan, local.stage, *env.ops);
}

std::unique_ptr<actors::Body> Worker::Impl::segment_body(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  actors::SegmentSpec spec;
  auto bind = [&](const PlanOperand& o) {
    actors::Operand b;
    b.view = view(o.tensor);
    b.port = o.port;
    switch (o.where) {
      case PlanOperand::Where::scratch:
        b.where = actors::Operand::Where::scratch;
        b.offset = o.offset;
        break;
      case PlanOperand::Where::in:
        b.where = actors::Operand::Where::in;
        b.offset = plan_channel(a.in[o.port]).offsets[o.index];
        break;
      case PlanOperand::Where::out:
        b.where = actors::Operand::Where::out;
        b.offset = plan_channel(a.out[o.port]).offsets[o.index];
        break;
    }
    return b;
  };
  for (const auto& op : pa.ops) {
    if (op.op.empty() && !local.reports) continue;
    actors::BoundOp bound;
    bound.def = op.op.empty() ? nullptr : env.ops->find(op.op);
    bound.name = op.name;
    bound.attrs = op.attrs;
    if (op.attrs.has("loss")) bound.report = Report::Kind::loss;
    for (const auto& o : op.in) bound.in.push_back(bind(o));
    for (const auto& o : op.out) {
      bound.out.push_back(bind(o));
      const auto param = plan.tensors[o.tensor].gradient_of;
      if (o.where != PlanOperand::Where::out || param < 0) continue;
      const Exponent at = exponent_of(plan, role(), pa, param);
      bound.out.back().gradient = static_cast<std::int32_t>(spec.gradients.size());
      spec.gradients.push_back({plan.params[param].name, at.port, at.offset, term_bits(plan.params[param].terms)});
    }
    if (op.state_bytes > 0) bound.state = {pool->data() + a.op_state_offset + op.state_offset, static_cast<std::size_t>(op.state_bytes)};
    if (op.attrs.has("rng")) bound.rng_key = philox_key(plan.seed, op.attrs.text("rng"));
    spec.ops.push_back(std::move(bound));
  }
  spec.in = memories(a.in);
  spec.out = memories(a.out);
  spec.acts_per_step = static_cast<std::int32_t>(std::max<std::size_t>(1, a.spec.microbatches.size()));
  spec.scratch = pool->data() + local.scratch_offset;
  spec.scratch_bytes = local.scratch_bytes;
  spec.op_scratch_offset = pa.op_scratch_offset;
  spec.samples_per_microbatch = plan.program_specs[pa.program].samples;
  spec.progress = progress;
  spec.report = sink();
  spec.first_peak = gradients.first_peak[static_cast<std::size_t>(a.actor)];
  spec.tell = gradient_sink();
  return std::make_unique<actors::SegmentBody>(std::move(spec));
}

std::unique_ptr<actors::Body> Worker::Impl::norm_body(const LocalActor& a) {
  std::vector<actors::ParamPart> parts;
  for (const auto& ref : plan_actor(a).params) {
    SquareRows rows = square_rows(plan, normed(role(), plan_actor(a), ref), local.rank);
    actors::ParamPart part;
    part.extent = std::move(rows.extent);
    part.nodes = std::move(rows.nodes);
    for (const auto& use : ref.grads) part.grads.push_back({use.port, plan_channel(a.in[use.port]).offsets[use.index]});
    part.exponent_offset = exponent_of(plan, role(), plan_actor(a), ref.param).offset;
    parts.push_back(std::move(part));
  }
  std::int32_t params_port = 0;
  while (plan_channel(a.in[params_port]).kind != PlanChannel::Kind::parameter) ++params_port;
  return std::make_unique<actors::NormBody>(std::move(parts), memories(a.in), params_port,
                                            gradients.first_square_sum[static_cast<std::size_t>(a.actor)], gradient_sink());
}

std::unique_ptr<actors::Body> Worker::Impl::update_body(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  std::vector<actors::ParamPart> parts;
  std::int32_t commit_port = -1;
  for (std::size_t i = 0; i < a.in.size(); ++i)
    if (plan_channel(a.in[i]).kind == PlanChannel::Kind::commit) commit_port = static_cast<std::int32_t>(i);
  for (const auto& ref : pa.params) {
    const PlanParam& p = plan.params[ref.param];
    actors::ParamPart part;
    const Extent stored = plan.extent(p.stored(), local.rank);
    part.extent = p.share >= 0 ? plan.extent(p.share, local.rank) : stored;
    for (const auto& use : ref.grads) part.grads.push_back({use.port, plan_channel(a.in[use.port]).offsets[use.index]});
    part.rounded = plan_channel(a.in[ref.grads[0].port]).kind == PlanChannel::Kind::rounded;
    part.exponent_offset = exponent_at(plan_channel(a.out[0]), ref.index);
    part.index = ref.param;
    part.param_offset = plan_channel(a.out[0]).offsets[ref.index] +
                        (part.extent.empty() ? 0 : offset_in(part.extent, stored) * size_of(plan.tensors[p.tensor].dtype));
    part.moments_offset = state_at[static_cast<std::size_t>(ref.param)];
    part.decay = p.decay;
    parts.push_back(std::move(part));
  }
  return std::make_unique<actors::UpdateBody>(std::move(parts), memories(a.in), commit_port, memory(a.out[0]),
                                              pool->data(), plan.hyper);
}

std::unique_ptr<actors::Body> Worker::Impl::digest_body(const LocalActor& a) {
  std::vector<actors::DigestBody::Part> parts;
  for (const auto& ref : plan_actor(a).params) {
    const PlanParam& p = plan.params[ref.param];
    auto v = view(p.stored());
    // The extent is part of the name: replicas must agree, parts add up.
    auto name = p.name + "|" + to_string(v.extent);
    parts.push_back({std::move(name), std::move(v), plan_channel(a.in[0]).offsets[ref.index]});
  }
  return std::make_unique<actors::DigestBody>(std::move(parts), memory(a.in[0]), sink());
}

Expected<std::unique_ptr<actors::Body>> Worker::Impl::user_body(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  const PlanOp& op = pa.ops[0];
  auto make = [&]() -> Expected<std::unique_ptr<actors::UserActor>> {
    try {
      return env.user_actors->at(op.op)({op.name, local.rank, plan.seed, op.attrs});
    } catch (const std::exception& e) {
      return Status(Code::internal, std::string("exception: ") + e.what());
    }
  };
  auto made = make();
  if (!made.ok()) return made.status().in("actor '" + op.name + "'");
  std::vector<actors::UserOperand> in, out;
  for (const auto& o : op.in) in.push_back({o.port, plan_channel(a.in[o.port]).offsets[o.index], view(o.tensor)});
  for (const auto& o : op.out) out.push_back({o.port, plan_channel(a.out[o.port]).offsets[o.index], view(o.tensor)});
  return std::unique_ptr<actors::Body>(std::make_unique<actors::UserBody>(*std::move(made), std::move(in), std::move(out), memories(a.in),
                                           memories(a.out), plan.program_specs[pa.program].samples, sink()));
}

std::shared_ptr<actors::Executor> Worker::Impl::communicator(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  actors::CommunicatorSpec spec;
  spec.header.job = env.job;
  spec.header.generation = env.generation;
  spec.header.program = static_cast<std::uint16_t>(pa.program);
  spec.header.channel = static_cast<std::uint32_t>(pa.exchange);
  spec.routes = a.routes;
  spec.route_of = a.route_of;
  spec.microbatches = a.spec.microbatches;
  spec.acts_per_run = a.acts_per_run;
  spec.in = pa.gathers() ? memories(a.out) : memories(a.in);
  spec.has_out = !a.out.empty() && plan_channel(a.out[0]).kind != PlanChannel::Kind::turn;
  if (spec.has_out) spec.out = memory(a.out[0]);
  for (std::int32_t i = 0; i < a.staging_slots; ++i)
    spec.staging.push_back(pool->data() + a.staging_offset + i * a.staging_bytes);
  spec.priority = pa.priority;
  return std::make_shared<actors::Communicator>(std::move(spec), *env.transport, *streams.at("comm"), *env.clock);
}

Expected<std::shared_ptr<actors::Executor>> Worker::Impl::executor(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  std::unique_ptr<actors::Body> body;
  switch (pa.kind) {
    case PlanActor::Kind::exchange: return communicator(a);
    case PlanActor::Kind::segment: body = segment_body(a); break;
    case PlanActor::Kind::norm: body = norm_body(a); break;
    case PlanActor::Kind::update: body = update_body(a); break;
    case PlanActor::Kind::digest: body = digest_body(a); break;
    case PlanActor::Kind::snapshot: body = snapshot_body(a); break;
    case PlanActor::Kind::writer: body = writer_body(a); break;
    case PlanActor::Kind::user: {
      TROUPE_ASSIGN(body, user_body(a));
      break;
    }
  }
  if (!env.run_kernels && pa.kind == PlanActor::Kind::segment) body = std::make_unique<IdleBody>();
  std::shared_ptr<actors::Executor> on_stream = std::make_shared<actors::StreamExecutor>(
      pa.name, *streams.at(pa.stream), std::move(body), pa.priority, pa.run, pa.cost_s);
  if (pa.stream == "compute") on_stream = std::make_shared<Metered>(std::move(on_stream), busy_ns, nullptr);
  if (pa.kind == PlanActor::Kind::snapshot) on_stream = std::make_shared<Copying>(std::move(on_stream), stalls);
  if (!pa.gathers()) return on_stream;
  return std::shared_ptr<actors::Executor>(std::make_shared<actors::UpdateThenGather>(std::move(on_stream), communicator(a)));
}

ConductorSpec Worker::Impl::conductor_spec() {
  ConductorSpec spec;
  spec.closers = local.closers;
  spec.fed.assign(plan.programs.size(), false);
  for (const auto& r : plan.roles)
    for (const auto& c : r.channels)
      if (!c.after.empty()) spec.fed[c.program] = true;
  for (std::size_t i = 0; i < local.channels.size(); ++i) {
    const PlanChannel& c = plan_channel(static_cast<std::int32_t>(i));
    if (c.writer >= 0) continue;
    ControlChannel out{c.kind, c.name, c.program,
                       actors::ControlPort(c.name, c.slots, local.channels[i].readers, memory(static_cast<std::int32_t>(i)))};
    spec.channels.emplace(static_cast<std::int32_t>(i), std::move(out));
    if (c.kind == PlanChannel::Kind::feed) {
      const PlanTensor& t = plan.tensors[c.tensors[0]];
      spec.feeds.push_back({c.name, c.program, static_cast<std::size_t>(elements(t.shape) * size_of(t.dtype)),
                            plan.microbatches(c.program, local.stage, local.dp_index)});
    }
  }
  spec.busy_ns = busy_ns;
  spec.exponents = plan.trains ? plan.params.size() : 0;
  spec.square_sums = gradients.square_sums;
  spec.peaks = gradients.peaks;
  spec.on_commit = [stalls = stalls, clock = env.clock](std::int64_t step) { stalls->committed(step, clock->now_ns()); };
  spec.on_begin = [this](const std::vector<std::int32_t>& exponents) { set_exponents(exponents); };
  spec.send = env.send;
  return spec;
}

/// Transfers under way at the same time, each of them mostly waiting.
constexpr int disk_threads = 4;

Status Worker::Impl::build() {
  TROUPE_TRY(check_ops());
  gradients = gradient_parts(plan, local.rank);
  TROUPE_ASSIGN(pool, env.device->allocate(static_cast<std::size_t>(local.pool_bytes)));
  if (local.arena_bytes > 0) { TROUPE_ASSIGN(arena, env.device->allocate_pinned(static_cast<std::size_t>(local.arena_bytes))); }
  place_state();
  if (env.restore.empty()) initialise_parameters();
  clear_caches();
  TROUPE_TRY(make_shards());
  streams["compute"] = env.device->create_stream("compute", env.threads);
  streams["comm"] = env.device->create_stream("comm", 1);
  streams["host"] = env.device->create_stream("host", 1);
  if (local.arena_bytes > 0) {
    streams["snapshot"] = env.device->create_stream("snapshot", 1);
    Task populate;   // else page faults slow down the first copies, and updates wait for them
    populate.name = "populate the arena";
    populate.work = [this](Parallel&) { arena->populate(); };
    streams["snapshot"]->submit(std::move(populate));
  }
  if (local.arena_bytes > 0 || !env.restore.empty()) streams["disk"] = env.device->create_stream("disk", disk_threads);
  conductor = env.system->spawn<Conductor>(conductor_spec());
  for (const auto& a : local.actors) {
    auto made = executor(a);
    if (!made.ok()) return made.status();
    auto metered = std::make_shared<Metered>(*std::move(made), nullptr, progress);
    actors.push_back(env.system->spawn<actors::PortActor>(a.spec, std::move(metered), env.trace));
  }
  env.transport->on_peer_down([this](Rank rank, Status s) { caf::anon_send(conductor, PeerDown{rank, std::move(s)}); });
  caf::anon_send(conductor, actors::Wire{actors, conductor});
  for (const auto& a : actors) caf::anon_send(a, actors::Wire{actors, conductor});
  return {};
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Worker::~Worker() { stop(); }

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
  auto done = [send = impl.env.send, clock = impl.env.clock, begin_ns](const Expected<std::int64_t>& bytes) {
    if (bytes.ok()) send(Ready{*bytes, static_cast<double>(clock->now_ns() - begin_ns) * 1e-9});
    else send(WorkerFailed{"", bytes.status()});
  };
  if (impl.env.restore.empty()) return done(std::int64_t{0});
  if (!impl.env.storage) return done(invalid("there is no storage to restore from"));
  RestoreEnv env{*impl.env.storage, *impl.env.transport, *impl.env.device, *impl.streams.at("disk"), *impl.streams.at("comm"), {}, impl.progress};
  env.header.job = impl.env.job;
  env.header.generation = impl.env.generation;
  restore(impl.plan, impl.local.rank, impl.env.restore, impl.restore_places(), env, done);
}

void Worker::handle(ToWorker message) { caf::anon_send(impl_->conductor, SessionSays{std::move(message)}); }

void Worker::stop() {
  if (impl_->stopped) return;
  impl_->stopped = true;
  // The order of a quiesce: no new transfers, then transfers and tasks under way end or are cancelled, then actors
  // exit.
  impl_->env.transport->shutdown();
  for (auto& [name, stream] : impl_->streams) stream->quiesce();
  for (auto& a : impl_->actors) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  if (impl_->conductor) caf::anon_send_exit(impl_->conductor, caf::exit_reason::user_shutdown);
}

std::int64_t Worker::progress() const { return *impl_->progress; }

const LocalPlan& Worker::local() const { return impl_->local; }

}  // namespace troupe::runtime
