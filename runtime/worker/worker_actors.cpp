// The actors of a worker: for each kind of the plan the body that computes, or the executor that runs without a stream.
#include <array>

#include "actors/communicator.h"
#include "actors/optimizer.h"
#include "actors/segment.h"
#include "actors/update_then_gather.h"
#include "actors/version_word.h"
#include "devices/base/philox.h"
#include "runtime/plan/actor_traits.h"
#include "runtime/plan/update_ops.h"
#include "runtime/session/sum_scale.h"
#include "runtime/worker/act_watch.h"
#include "runtime/worker/injection.h"
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
    inner_->submit(std::move(c), std::move(started),
                   [busy = busy_ns_, acts = acts_, done = std::move(done)](actors::ActDone d) {
                     if (busy) *busy += d.end_ns - d.begin_ns;
                     if (acts) ++*acts;
                     done(std::move(d));
                   });
  }

 private:
  std::shared_ptr<actors::Executor> inner_;
  Counter busy_ns_, acts_;  ///< either may be none
};

/// Tells the StallMeter when a snapshot's copies end.
class Copying final : public actors::Executor {
 public:
  Copying(std::shared_ptr<actors::Executor> inner, std::shared_ptr<StallMeter> stalls)
      : inner_(std::move(inner)), stalls_(std::move(stalls)) {}
  void submit(actors::ActContext c, std::function<void()> started, std::function<void(actors::ActDone)> done) override {
    const auto version = c.step;
    inner_->submit(std::move(c), std::move(started),
                   [stalls = stalls_, version, done = std::move(done)](actors::ActDone d) {
                     stalls->copied(version, d.end_ns);
                     done(std::move(d));
                   });
  }

 private:
  std::shared_ptr<actors::Executor> inner_;
  std::shared_ptr<StallMeter> stalls_;
};

/// Whether no place before this one, in the mesh's order, has the same part of a tensor.
bool is_first_replica(const Mesh& mesh, const NdSbp& sbp, Rank rank) {
  const auto coord = mesh.coord(mesh.find(rank));
  for (std::size_t a = 0; a < coord.size(); ++a)
    if (sbp[a].is_broadcast() && coord[a] != 0) return false;
  return true;
}

/// Whether what a user-defined actor reports at this place counts: of places that give it the same parts, that of the
/// first. Where a port is divided along an axis, each place there has a part of its own.
bool reports_here(const Plan& plan, const PlanOp& op, std::int32_t stage, Rank rank) {
  std::vector<std::int32_t> ports;
  for (const auto* side : {&op.in, &op.out})
    for (const auto& o : *side) ports.push_back(o.tensor);
  const Mesh& mesh = plan.meshes[ports.empty() ? stage : plan.tensors[ports[0]].mesh];
  NdSbp parts(mesh.axes.size(), Sbp::B());
  for (const auto t : ports)
    for (std::size_t a = 0; a < parts.size(); ++a)
      if (const Sbp& sbp = plan.tensors[t].sbp[a]; !sbp.is_broadcast()) parts[a] = sbp;
  if (const int dp = dp_axis(mesh); dp >= 0) parts[dp] = Sbp::S(0);  // microbatches
  return is_first_replica(mesh, parts, rank);
}

/// Passes time, computes nothing: for schedules on the paced device.
class IdleBody final : public actors::Body {
 public:
  Status run(const actors::ActContext&, Parallel&) override { return {}; }
};

}  // namespace

Worker::Impl::MadeBody Worker::Impl::segment_body(const LocalActor& a) {
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
    if (op.op.empty() && !local.leads) continue;
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
    if (op.state_bytes > 0)
      bound.state = {compute_pool() + a.op_state_offset + op.state_offset, static_cast<std::size_t>(op.state_bytes)};
    if (op.attrs.has("rng")) bound.rng_key = philox_key(plan.seed, op.attrs.text("rng"));
    spec.ops.push_back(std::move(bound));
  }
  spec.in = memories(a.in);
  spec.out = memories(a.out);
  spec.acts_per_step = static_cast<std::int32_t>(std::max<std::size_t>(1, a.spec.microbatches.size()));
  spec.scratch = compute_pool() + local.scratch_offset;
  spec.scratch_bytes = local.scratch_bytes;
  spec.op_scratch_offset = pa.op_scratch_offset;
  spec.samples_per_microbatch = plan.programs[pa.program].spec.samples;
  spec.progress = env.progress;
  spec.report = sink();
  spec.first_peak = gradients.first_peak[static_cast<std::size_t>(a.actor)];
  spec.tell = gradient_sink();
  TROUPE_ASSIGN(spec.device, device_side(actors::SegmentBody::landing_bytes(spec)));
  spec.op_scratch = own_scratch();
  return std::unique_ptr<actors::Body>(std::make_unique<actors::SegmentBody>(std::move(spec)));
}

Worker::Impl::MadeBody Worker::Impl::norm_body(const LocalActor& a) {
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
  TROUPE_ASSIGN(const auto device, device_side(actors::NormBody::landing_bytes(parts)));
  return std::unique_ptr<actors::Body>(std::make_unique<actors::NormBody>(
      std::move(parts), memories(a.in), params_port, gradients.first_square_sum[static_cast<std::size_t>(a.actor)],
      gradient_sink(), device));
}

Worker::Impl::MadeBody Worker::Impl::update_body(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  std::vector<actors::ParamPart> parts;
  // An update of parameters that no program trains reads none of them.
  const auto training = plan.training();
  const auto commit =
      static_cast<std::size_t>(std::find(training.begin(), training.end(), pa.program) - training.begin());
  std::int32_t commit_port = -1, own_port = -1;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(a.in.size()); ++i) {
    if (plan_channel(a.in[i]).kind == PlanChannel::Kind::commit) commit_port = i;
    if (a.in[i] == a.out[0]) own_port = i;
  }
  for (const auto& ref : pa.params) {
    const PlanParam& p = plan.params[ref.param];
    actors::ParamPart part;
    const Extent stored = plan.extent(p.stored(), local.rank);
    part.extent = p.share >= 0 ? plan.extent(p.share, local.rank) : stored;
    for (const auto& use : ref.grads) part.grads.push_back({use.port, plan_channel(a.in[use.port]).offsets[use.index]});
    part.rounded = !ref.grads.empty() && plan_channel(a.in[ref.grads[0].port]).kind == PlanChannel::Kind::rounded;
    part.exponent_offset = exponent_at(plan_channel(a.out[0]), ref.index);
    part.index = ref.param;
    part.item_bytes = size_of(plan.tensors[p.tensor].dtype);
    part.param_offset = plan_channel(a.out[0]).offsets[ref.index] +
                        (part.extent.empty() ? 0 : offset_in(part.extent, stored) * part.item_bytes);
    part.moments_offset = places[static_cast<std::size_t>(ref.param)].moments;
    part.decay = p.decay;
    part.by_ops = p.by_ops;
    parts.push_back(std::move(part));
  }
  return std::unique_ptr<actors::Body>(std::make_unique<actors::UpdateBody>(
      std::move(parts), memories(a.in), commit_port, own_port, memory(a.out[0]),
      plan.programs[static_cast<std::size_t>(pa.program)].optimizer.value_or(kernels::AdamW{}), commit, training.size(),
      bind_update_ops(a), actors::DeviceSide{env.device_ops}));
}

actors::UpdateOps Worker::Impl::bind_update_ops(const LocalActor& a) {
  using Kind = actors::UpdateOps::Kind;
  static const std::map<std::string, Kind> own = {{update_ops::adamw, Kind::adamw},
                                                  {update_ops::gradient, Kind::gradient},
                                                  {update_ops::learning_rate, Kind::learning_rate},
                                                  {update_ops::number, Kind::number},
                                                  {update_ops::copy, Kind::copy}};
  const PlanActor& pa = plan_actor(a);
  const auto bind = [&](const PlanOperand& o) {
    actors::Operand b;
    b.view = view(o.tensor);
    b.offset = o.offset;
    if (o.where == PlanOperand::Where::scratch) return b;
    b.port = o.port;
    if (o.where == PlanOperand::Where::in && o.port != update_ops::own_version) {
      b.where = actors::Operand::Where::in;
      b.offset = plan_channel(a.in[o.port]).offsets[o.index];
      return b;
    }
    b.where = o.where == PlanOperand::Where::in ? actors::Operand::Where::in : actors::Operand::Where::out;
    const PlanParam& p = plan.params[pa.params[o.index].param];
    b.offset = plan_channel(a.out[0]).offsets[pa.params[o.index].index];
    if (!b.view.extent.empty())
      b.offset += offset_in(b.view.extent, plan.extent(p.stored(), local.rank)) * size_of(b.view.dtype);
    return b;
  };
  actors::UpdateOps ops;
  if (!env.run_kernels) return ops;  // they would work on what no op has made
  for (const PlanOp& op : pa.ops) {
    actors::UpdateOps::Step step;
    if (const auto kind = own.find(op.op); kind != own.end()) step.kind = kind->second;
    else step.op.def = env.ops->find(op.op);
    step.part = static_cast<std::size_t>(op.attrs.integer(update_ops::param_of_gradient));
    step.always = op.attrs.integer(update_ops::always) != 0;
    step.op.name = op.name;
    step.op.attrs = op.attrs;
    for (const auto& o : op.in) step.op.in.push_back(bind(o));
    for (const auto& o : op.out) step.op.out.push_back(bind(o));
    if (op.attrs.has("rng")) step.op.rng_key = philox_key(plan.seed, op.attrs.text("rng"));
    ops.steps.push_back(std::move(step));
  }
  ops.scratch = compute_pool() + local.scratch_offset;
  ops.scratch_bytes = local.scratch_bytes;
  ops.op_scratch_offset = pa.op_scratch_offset;
  ops.op_scratch = own_scratch();
  return ops;
}

Worker::Impl::MadeBody Worker::Impl::digest_body(const LocalActor& a) {
  std::vector<actors::DigestBody::Part> parts;
  std::set<std::int32_t> first;  // parameters of whose part this place has the first replica
  for (const auto& ref : plan_actor(a).params) {
    const PlanParam& p = plan.params[ref.param];
    auto v = view(p.stored());
    // The extent is part of the name: replicas must agree, parts add up.
    auto name = p.name + "|" + to_string(v.extent);
    parts.push_back({std::move(name), std::move(v), plan_channel(a.in[0]).offsets[ref.index], ref.param, !p.kept});
    const PlanTensor& stored = plan.tensors[p.stored()];
    if (is_first_replica(plan.meshes[stored.mesh], stored.sbp, local.rank)) first.insert(ref.param);
  }
  const auto told = [this, first = std::move(first)](std::int32_t param) {
    return wanted.count(param) > 0 && first.count(param) > 0;
  };
  TROUPE_ASSIGN(const auto device, device_side(actors::DigestBody::landing_bytes(parts)));
  return std::unique_ptr<actors::Body>(
      std::make_unique<actors::DigestBody>(std::move(parts), memory(a.in[0]), sink(), told, device));
}

Worker::Impl::MadeBody Worker::Impl::user_body(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  const PlanOp& op = pa.ops[0];
  auto make = [&]() -> Expected<std::unique_ptr<actors::UserActor>> {
    try {
      return env.user_actors->at(op.op)({op.name, local.rank, plan.seed, op.attrs});
    } catch (...) {
      return actors::exception_status(std::current_exception());
    }
  };
  auto made = make();
  if (made.ok() && *made == nullptr) made = invalid("its factory has returned no actor, and no error");
  if (!made.ok()) return made.status().in("actor '" + op.name + "'");
  std::vector<actors::UserOperand> in, out;
  for (const auto& o : op.in) in.push_back({o.port, plan_channel(a.in[o.port]).offsets[o.index], view(o.tensor)});
  for (const auto& o : op.out) out.push_back({o.port, plan_channel(a.out[o.port]).offsets[o.index], view(o.tensor)});
  const bool reports = reports_here(plan, op, local.stage, local.rank);
  std::function<void(const actors::ActContext&)> finished;
  if (pa.finishes())
    finished = [tell = sink(), name = pa.name](const actors::ActContext& c) {
      tell(c.program, {Report::Kind::finished, name, c.step, c.microbatch, {}, {}});
    };
  return std::unique_ptr<actors::Body>(std::make_unique<actors::UserBody>(
      *std::move(made), std::move(in), std::move(out), memories(a.in), memories(a.out),
      plan.programs[pa.program].spec.samples, reports ? sink() : [](std::uint16_t, const Report&) {},
      std::move(finished)));
}

std::shared_ptr<actors::Executor> Worker::Impl::communicator(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  actors::CommunicatorSpec spec;
  spec.header.job = env.generation.job;
  spec.header.generation = env.generation.number;
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
  if (pa.kind == PlanActor::Kind::exchange) spec.adding_s = pa.cost_s;
  return std::make_shared<actors::Communicator>(std::move(spec), *env.transport, *streams.at("comm"), *env.clock);
}

Expected<std::shared_ptr<actors::Executor>> Worker::Impl::on_stream(const LocalActor& a) {
  // By kind, as in ActorTraits; an exchange has no body.
  using MakeBody = MadeBody (Impl::*)(const LocalActor&);
  static constexpr auto bodies = std::to_array<MakeBody>({&Impl::segment_body, &Impl::user_body, nullptr,
                                                          &Impl::norm_body, &Impl::update_body, &Impl::digest_body,
                                                          &Impl::snapshot_body, &Impl::writer_body, &Impl::copy_body});
  static_assert(bodies.size() == actor_kinds, "a factory for each kind");
  const PlanActor& pa = plan_actor(a);
  std::unique_ptr<actors::Body> body;
  TROUPE_ASSIGN(body, (this->*bodies[static_cast<std::size_t>(pa.kind)])(a));
  if (env.injector) body = injected(std::move(body), injected_names(pa), *env.injector);
  const auto judged = pa.waits()            ? ActWatch::Judged::waits
                      : pa.stream == "disk" ? ActWatch::Judged::no
                                            : ActWatch::Judged::yes;
  if (env.watch) body = std::make_unique<WatchedBody>(std::move(body), pa.name, judged, env.watch);
  if (!env.run_kernels && pa.kind == PlanActor::Kind::segment) body = std::make_unique<IdleBody>();
  return std::shared_ptr<actors::Executor>(std::make_shared<actors::StreamExecutor>(
      pa.name, *streams.at(stream_of(pa)), std::move(body), pa.priority, pa.run, pa.cost_s));
}

Expected<std::shared_ptr<actors::Executor>> Worker::Impl::executor(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  std::shared_ptr<actors::Executor> made;
  if (pa.kind == PlanActor::Kind::exchange) {
    made = communicator(a);
    if (env.injector) made = injected(std::move(made), injected_names(pa), *env.injector);
  } else {
    TROUPE_ASSIGN(made, on_stream(a));
  }
  if (pa.stream == "compute") made = std::make_shared<Metered>(std::move(made), busy_ns, nullptr);
  if (pa.kind == PlanActor::Kind::snapshot) made = std::make_shared<Copying>(std::move(made), stalls);
  if (pa.gathers()) {
    auto gather = communicator(a);
    if (env.injector) gather = injected(std::move(gather), {"gather"}, *env.injector);
    made = std::make_shared<actors::UpdateThenGather>(std::move(made), std::move(gather));
  }
  if (pa.kind == PlanActor::Kind::update && local.channels[a.out[0]].version_offset >= 0)
    made = std::make_shared<actors::MarksVersion>(std::move(made), memory(a.out[0]),
                                                  local.channels[a.out[0]].version_offset);
  return std::shared_ptr<actors::Executor>(std::make_shared<Metered>(std::move(made), nullptr, env.progress));
}

}  // namespace troupe::runtime
