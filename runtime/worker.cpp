#include "runtime/worker.h"

#include <algorithm>
#include <caf/actor_system.hpp>
#include <caf/send.hpp>

#include "actors/communicator.h"
#include "actors/lane_sum.h"
#include "actors/optimizer.h"
#include "actors/segment.h"
#include "actors/snapshot.h"
#include "actors/update_then_gather.h"
#include "actors/writer.h"
#include "checkpoint/cut.h"
#include "devices/base/check.h"
#include "devices/base/philox.h"
#include "devices/parallel.h"
#include "runtime/conductor.h"
#include "runtime/restore.h"
#include "runtime/saved_parts.h"
#include "runtime/stall_meter.h"
#include "runtime/verify.h"

namespace troupe::runtime {

using actors::PortMemory;

struct Worker::Impl {
  Plan plan;
  LocalPlan local;
  WorkerEnv env;
  std::unique_ptr<Buffer> pool, arena;
  std::vector<std::int64_t> state_at;   // per parameter: its moments in the pool; -1: it is not here, or not trained
  std::map<std::string, std::unique_ptr<Stream>> streams;
  std::vector<caf::actor> actors;
  caf::actor conductor;
  std::shared_ptr<std::atomic<std::int64_t>> busy_ns = std::make_shared<std::atomic<std::int64_t>>(0);
  std::shared_ptr<std::atomic<std::int64_t>> acts = std::make_shared<std::atomic<std::int64_t>>(0);
  std::shared_ptr<StallMeter> stalls = std::make_shared<StallMeter>();
  bool stopped = false;

  const PlanRole& role() const { return plan.roles[local.stage]; }
  const PlanActor& plan_actor(const LocalActor& a) const { return role().actors[a.actor]; }
  const PlanChannel& plan_channel(std::int32_t local_channel) const {
    return role().channels[local.channels[local_channel].channel];
  }

  Status build();
  Status check_ops() const;
  void place_state();
  void initialise_parameters();
  RestorePlaces restore_places() const;
  void clear_caches();
  Expected<std::shared_ptr<actors::Executor>> executor(const LocalActor& a);
  ConductorSpec conductor_spec();

  PortMemory memory(std::int32_t local_channel) const {
    const LocalChannel& c = local.channels[local_channel];
    const bool host = plan_channel(local_channel).kind == PlanChannel::Kind::snapshot;
    return {(host ? arena : pool)->data() + c.offset, c.slot_bytes};
  }
  std::vector<PortMemory> memories(const std::vector<std::int32_t>& channels) const {
    std::vector<PortMemory> out;
    for (auto c : channels) out.push_back(memory(c));
    return out;
  }

  kernels::View view(std::int32_t tensor) const {
    const PlanTensor& t = plan.tensors[tensor];
    kernels::View v;
    v.dtype = t.dtype;
    v.logical = t.shape;
    v.extent = plan.extent(tensor, local.rank);
    v.shape = v.extent.shape();
    return v;
  }

  /// Of all places with the same part of a tensor, exactly one answers true.
  bool first_replica(std::int32_t tensor) const {
    const PlanTensor& t = plan.tensors[tensor];
    const Mesh& mesh = plan.meshes[t.mesh];
    const auto coord = mesh.coord(mesh.find(local.rank));
    for (std::size_t a = 0; a < coord.size(); ++a)
      if (t.sbp[a].is_broadcast() && coord[a] != 0) return false;
    return true;
  }

  actors::ReportSink sink() {
    // The conductor is wired later; a report is sent only while acts run.
    return [this](std::uint16_t program, Report report) {
      caf::anon_send(conductor, ActorReports{program, std::move(report)});
    };
  }

  /// A gradient that leaves this place lane by lane: one copy, which the first microbatch of a lane begins.
  std::vector<LaneAct> own_lane_acts() const {
    std::vector<LaneAct> out;
    const auto lanes = plan.lanes_for(0);
    const auto total = plan.program_specs[0].microbatches;
    for (auto m : plan.microbatches(0, local.stage, local.dp_index))
      out.push_back({0, m != microbatches_of(lane_of(m, lanes, total), lanes, total).lo, {}});
    return out;
  }

  std::unique_ptr<actors::Body> segment_body(const LocalActor& a);
  std::unique_ptr<actors::Body> sum_body(const LocalActor& a);
  std::unique_ptr<actors::Body> norm_body(const LocalActor& a);
  std::unique_ptr<actors::Body> update_body(const LocalActor& a);
  std::unique_ptr<actors::Body> digest_body(const LocalActor& a);
  std::unique_ptr<actors::Body> snapshot_body(const LocalActor& a);
  Expected<std::unique_ptr<actors::Body>> writer_body(const LocalActor& a);
  Expected<std::unique_ptr<actors::Body>> user_body(const LocalActor& a);
  std::shared_ptr<actors::Executor> communicator(const LocalActor& a);
};

namespace {

/// Counts acts, of any stream: a worker's progress; or the time that the compute stream is busy, for the metrics.
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

/// Tells when copies end.
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
        b.accumulator = plan_channel(a.out[o.port]).kind == PlanChannel::Kind::gradient;
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
    for (const auto& o : op.out) bound.out.push_back(bind(o));
    if (op.state_bytes > 0) bound.state = {pool->data() + a.cache_offset + op.state_offset, static_cast<std::size_t>(op.state_bytes)};
    if (op.attrs.has("rng")) bound.rng_key = philox_key(plan.seed, op.attrs.text("rng"));
    spec.ops.push_back(std::move(bound));
  }
  spec.in = memories(a.in);
  spec.out = memories(a.out);
  for (auto c : a.out) {
    const bool gradient = plan_channel(c).kind == PlanChannel::Kind::gradient;
    spec.copy_bytes.push_back(gradient ? local.channels[c].copy_bytes : 0);
    spec.lanes.push_back(!gradient ? std::vector<LaneAct>{} : plan_channel(c).rate == Rate::lane ? own_lane_acts() : plan.lane_schedule(local.stage, local.dp_index).acts);
  }
  spec.scratch = pool->data() + local.scratch_offset;
  spec.scratch_bytes = local.scratch_bytes;
  spec.op_scratch_offset = pa.op_scratch_offset;
  spec.samples_per_microbatch = plan.program_specs[pa.program].samples;
  spec.report = sink();
  return std::make_unique<actors::SegmentBody>(std::move(spec));
}

std::unique_ptr<actors::Body> Worker::Impl::sum_body(const LocalActor& a) {
  const auto lanes_of_round = plan.copies(role(), plan_channel(a.in[0]), local.dp_index);
  return std::make_unique<actors::LaneSumBody>(actors::LaneSumSpec{
      fold_schedule(plan.lanes_for(0)), lanes_of_round, local.channels[a.out[0]].copy_bytes, memory(a.in[0]), memory(a.out[0])});
}

std::unique_ptr<actors::Body> Worker::Impl::norm_body(const LocalActor& a) {
  std::vector<actors::ParamPart> parts;
  for (const auto& ref : plan_actor(a).params) {
    const PlanParam& p = plan.params[ref.param];
    const auto& first = ref.grads[0];
    const std::int32_t tensor = plan_channel(a.in[first.port]).tensors[first.index];
    if (!first_replica(tensor)) continue;
    actors::ParamPart part;
    part.name = p.name;
    part.extent = plan.extent(tensor, local.rank);
    const Shape& shape = plan.tensors[p.tensor].shape;
    part.rows = shape.empty() ? 1 : shape[0];
    for (std::size_t d = 1; d < shape.size(); ++d) part.column = part.column * shape[d] + part.extent.dims[d].lo;
    for (const auto& use : ref.grads) part.grads.push_back({use.port, plan_channel(a.in[use.port]).offsets[use.index]});
    parts.push_back(std::move(part));
  }
  return std::make_unique<actors::NormBody>(std::move(parts), memories(a.in), pool->data() + local.scratch_offset, sink());
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
    part.name = p.name;
    const Extent stored = plan.extent(p.stored(), local.rank);
    part.extent = p.share >= 0 ? plan.extent(p.share, local.rank) : stored;
    for (const auto& use : ref.grads) part.grads.push_back({use.port, plan_channel(a.in[use.port]).offsets[use.index]});
    part.param_offset = plan_channel(a.out[0]).offsets[ref.index] +
                        (part.extent.empty() ? 0 : offset_in(part.extent, stored) * size_of(plan.tensors[p.tensor].dtype));
    part.state_offset = state_at[static_cast<std::size_t>(ref.param)];
    part.decay = p.decay;
    parts.push_back(std::move(part));
  }
  return std::make_unique<actors::UpdateBody>(std::move(parts), memories(a.in), commit_port, memory(a.out[0]),
                                              pool->data(), pool->data() + local.scratch_offset, plan.hyper);
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

std::unique_ptr<actors::Body> Worker::Impl::snapshot_body(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  std::vector<checkpoint::ShardEntry> entries;
  SavedParts(plan).entries(local.rank, pa, entries);
  std::vector<actors::SnapshotCopy> copies;
  for (const auto& e : entries) {
    const auto ref = std::find_if(pa.params.begin(), pa.params.end(), [&](const auto& r) { return plan.params[r.param].name == e.parameter; });
    const PlanParam& p = plan.params[ref->param];
    const bool moment = e.kind != checkpoint::TensorKind::parameter;
    const Extent whole = plan.extent(!moment ? p.stored() : p.share >= 0 ? p.share : p.tensor, local.rank);
    ASSERT(contiguous_in(e.extent, whole), e.parameter, e.extent, whole);   // rows of what lies here
    std::int64_t from = offset_in(e.extent, whole) * size_of(e.dtype);
    if (!moment) from += plan_channel(a.in[0]).offsets[ref->index];
    else from += state_at[static_cast<std::size_t>(ref->param)] + (e.kind == checkpoint::TensorKind::second_moment ? whole.elements() * size_of(e.dtype) : 0);
    copies.push_back({moment, from, e.offset, e.bytes()});
  }
  return std::make_unique<actors::SnapshotBody>(std::move(copies), memory(a.in[0]), pool->data(), memory(a.out[0]));
}

Expected<std::unique_ptr<actors::Body>> Worker::Impl::writer_body(const LocalActor& a) {
  if (!env.storage || env.save.dir.empty()) return invalid("the plan takes checkpoints, and the job has no folder for them");
  actors::WriterSpec spec;
  spec.storage = env.storage;
  spec.dir = env.save.dir;
  spec.stamp = {env.save.job, env.save.generation, 0};
  spec.rank = local.rank;
  spec.in = memories(a.in);
  spec.stall_ns = [stalls = stalls](std::int64_t step) { return stalls->stall_ns(step); };
  const SavedParts saved(plan);
  std::int64_t before = 0;
  for (auto c : a.in) {
    const auto end = saved.entries(local.rank, role().actors[plan_channel(c).writer], spec.entries);
    spec.bytes.push_back(end - before);
    before = end;
  }
  return std::unique_ptr<actors::Body>(std::make_unique<actors::WriterBody>(std::move(spec), sink()));
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
    case PlanActor::Kind::sum: body = sum_body(a); break;
    case PlanActor::Kind::snapshot: body = snapshot_body(a); break;
    case PlanActor::Kind::writer: {
      TROUPE_ASSIGN(body, writer_body(a));
      break;
    }
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

void Worker::Impl::place_state() {
  state_at.assign(plan.params.size(), -1);
  std::int64_t total = 0;
  for (const auto& a : local.actors) {
    if (plan_actor(a).kind != PlanActor::Kind::update) continue;
    const auto offsets = state_offsets(plan, local.rank, plan_actor(a), total);
    for (std::size_t i = 0; i < offsets.size(); ++i)
      state_at[static_cast<std::size_t>(plan_actor(a).params[i].param)] = local.state_offset + offsets[i];
  }
}

RestorePlaces Worker::Impl::restore_places() const {
  RestorePlaces places{pool->data(), std::vector<std::int64_t>(plan.params.size(), -1), state_at};
  for (const auto& a : local.actors) {
    if (plan_actor(a).kind != PlanActor::Kind::update) continue;
    const PlanChannel& c = plan_channel(a.out[0]);
    for (std::size_t p = 0; p < plan.params.size(); ++p)
      if (const auto it = std::find(c.tensors.begin(), c.tensors.end(), plan.params[p].stored()); it != c.tensors.end())
        places.params[p] = local.channels[a.out[0]].offset + c.offsets[static_cast<std::size_t>(it - c.tensors.begin())];
  }
  return places;
}

void Worker::Impl::initialise_parameters() {
  SerialParallel serial;
  for (const auto& a : local.actors) {
    if (plan_actor(a).kind != PlanActor::Kind::update) continue;
    const PlanChannel& c = plan_channel(a.out[0]);
    for (std::size_t i = 0; i < c.tensors.size(); ++i)
      for (const auto& p : plan.params) {
        if (p.stored() != c.tensors[i]) continue;
        auto v = view(p.stored());
        v.data = memory(a.out[0]).base + c.offsets[i];
        if (p.init == Init::Kind::normal) kernels::init_normal(v, philox_key(plan.seed, p.name), p.init_value, serial);
        else kernels::init_constant(v, p.init_value, serial);
      }
  }
}

void Worker::Impl::clear_caches() {
  for (const auto& a : local.actors) std::fill_n(pool->data() + a.cache_offset, plan_actor(a).state_bytes, std::byte{0});
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
  }
  spec.busy_ns = busy_ns;
  spec.on_commit = [stalls = stalls, clock = env.clock](std::int64_t step) { stalls->committed(step, clock->now_ns()); };
  spec.send = env.send;
  return spec;
}

/// Transfers under way at the same time, each of them mostly waiting.
constexpr int disk_threads = 4;

Status Worker::Impl::build() {
  TROUPE_TRY(check_ops());
  TROUPE_ASSIGN(pool, env.device->allocate(static_cast<std::size_t>(local.pool_bytes)));
  if (local.arena_bytes > 0) { TROUPE_ASSIGN(arena, env.device->allocate_pinned(static_cast<std::size_t>(local.arena_bytes))); }
  place_state();
  if (env.restore.empty()) initialise_parameters();
  clear_caches();
  streams["compute"] = env.device->create_stream("compute", env.threads);
  streams["comm"] = env.device->create_stream("comm", 1);
  streams["host"] = env.device->create_stream("host", 1);
  if (local.arena_bytes > 0) streams["snapshot"] = env.device->create_stream("snapshot", 1);
  if (local.arena_bytes > 0 || !env.restore.empty()) streams["disk"] = env.device->create_stream("disk", disk_threads);
  conductor = env.system->spawn<Conductor>(conductor_spec());
  for (const auto& a : local.actors) {
    auto made = executor(a);
    if (!made.ok()) return made.status();
    auto metered = std::make_shared<Metered>(*std::move(made), nullptr, acts);
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
  RestoreEnv env{*impl.env.storage, *impl.env.transport, *impl.env.device, *impl.streams.at("disk"), *impl.streams.at("comm"), {}};
  env.header.job = impl.env.job;
  env.header.generation = impl.env.generation;
  restore(impl.plan, impl.local.rank, impl.env.restore, impl.restore_places(), env, done);
}

void Worker::handle(ToWorker message) { caf::anon_send(impl_->conductor, SessionSays{std::move(message)}); }

void Worker::stop() {
  if (impl_->stopped) return;
  impl_->stopped = true;
  // The order of a quiesce: nothing new is issued, what is in flight ends or is cancelled, then memory goes.
  impl_->env.transport->shutdown();
  for (auto& [name, stream] : impl_->streams) stream->quiesce();
  for (auto& a : impl_->actors) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  if (impl_->conductor) caf::anon_send_exit(impl_->conductor, caf::exit_reason::user_shutdown);
}

std::int64_t Worker::acts() const { return *impl_->acts; }

const LocalPlan& Worker::local() const { return impl_->local; }

}  // namespace troupe::runtime
