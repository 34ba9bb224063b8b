#include "runtime/planner/draft.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "devices/base/check.h"
#include "runtime/plan/actor_traits.h"

namespace troupe::runtime {

PlanDraft::PlanDraft(const Graph& g, Plan& p, Lowered& l, std::int32_t stages)
    : graph(g), plan(p), low(l), virtual_stages(stages), pipeline_(static_cast<std::size_t>(stages)) {
  std::iota(pipeline_.begin(), pipeline_.end(), 0);
  for (const LoweredNode& n : low.nodes) {
    if (!plan.is_step_program(n.program)) continue;
    for (const std::int32_t t : n.in)
      if (const std::int32_t maker = low.producer[t]; maker >= 0) {
        const std::int32_t from = pipeline_[low.nodes[maker].virtual_stage], to = pipeline_[n.virtual_stage];
        if (from != to) std::replace(pipeline_.begin(), pipeline_.end(), std::max(from, to), std::min(from, to));
      }
  }
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    plan.roles.push_back({});
    plan.roles.back().stage = s;
  }
}

std::int32_t PlanDraft::add_tensor(PlanTensor tensor, const std::string& name) {
  tensor.name = name;
  plan.tensors.push_back(std::move(tensor));
  low.producer.push_back(-1);
  return static_cast<std::int32_t>(plan.tensors.size()) - 1;
}

ActorRef PlanDraft::add_actor(std::int32_t role, PlanActor actor, std::int32_t virtual_stage) {
  actor.virtual_stage = virtual_stage;
  actor.stream = traits(actor.kind).stream;
  auto& actors = plan.roles[role].actors;
  actors.push_back(std::move(actor));
  return {role, static_cast<std::int32_t>(actors.size()) - 1};
}

Ends PlanDraft::add_exchange(PlanExchange x, const std::vector<std::int32_t>& roles, std::int32_t virtual_stage,
                             bool backward) {
  PlanActor a;
  a.kind = PlanActor::Kind::exchange;
  a.name = x.name;
  a.program = x.program;
  a.rate = x.rate;
  a.pass = backward ? Pass::backward : Pass::forward;
  const Priority forward = plan.is_step_program(x.program) ? forward_priority : other_priority;
  a.priority = priority(backward ? backward_priority : forward, virtual_stage);
  a.exchange = static_cast<std::int32_t>(plan.exchanges.size());
  plan.exchanges.push_back(std::move(x));
  Ends ends;
  for (auto role : roles) ends[role] = add_actor(role, a, virtual_stage);
  return ends;
}

std::int32_t PlanDraft::put(PlanChannel& c, std::int32_t tensor) const {
  c.tensors.push_back(tensor);
  c.offsets.push_back(c.bytes);
  c.bytes += aligned(local_bytes(tensor));
  return static_cast<std::int32_t>(c.tensors.size()) - 1;
}

std::int32_t PlanDraft::connect(PlanChannel c, ActorRef writer, const std::vector<ActorRef>& readers) {
  auto& role = plan.roles[writer.role];
  c.program = at(readers.empty() ? writer : readers[0]).program;
  const auto id = static_cast<std::int32_t>(role.channels.size());
  c.writer = writer.actor;
  if (writer.actor >= 0) {
    c.writer_port = static_cast<std::int32_t>(at(writer).out.size());
    at(writer).out.push_back(id);
  }
  for (std::size_t i = 0; i < c.tensors.size(); ++i)
    home_[{writer.role, c.tensors[i]}] = {id, static_cast<std::int32_t>(i)};
  role.channels.push_back(std::move(c));
  for (const ActorRef& r : readers) {
    ASSERT(r.role == writer.role, role.channels[id].name, r.role, writer.role);
    add_reader(id, r);
  }
  return id;
}

void PlanDraft::add_reader(std::int32_t channel, ActorRef reader) {
  plan.roles[reader.role].channels[channel].readers.push_back(
      {reader.actor, static_cast<std::int32_t>(at(reader).in.size())});
  at(reader).in.push_back(channel);
}

std::optional<Home> PlanDraft::home(std::int32_t role, std::int32_t tensor) const {
  const auto it = home_.find({role, tensor});
  return it == home_.end() ? std::nullopt : std::optional(it->second);
}

std::int32_t PlanDraft::slots_between(std::int32_t role, std::int32_t program, PassAt from, PassAt to) const {
  const auto own = plan.dp_width(role);
  if (plan.ordered()) {
    const std::int32_t stages = plan.stages, stage = from.virtual_stage % stages;
    const MicrobatchOwners owners = plan.owners_of(program, role);
    std::set<std::int32_t> counts;  // places with equally many microbatches have one order
    for (std::int64_t d = 0; d < own; ++d) counts.insert(owners.acts(Rate::microbatch, d));
    std::int32_t most = 1;
    for (auto microbatches : counts) {
      const auto order = pass_order(plan.pipeline, stages, stage, microbatches);
      most = std::max(
          most, most_between(order, {from.pass, from.virtual_stage / stages}, {to.pass, to.virtual_stage / stages}));
    }
    return most;
  }
  // One for each place that could be at work in between: downstream between forward and backward, S - s where all are
  // equally wide; upstream between backward and weights.
  const std::int32_t begin = to.pass == Pass::weights ? 0 : std::min(from.virtual_stage, to.virtual_stage);
  const std::int32_t end = from.pass == Pass::forward && to.pass != Pass::forward
                               ? virtual_stages
                               : std::max(from.virtual_stage, to.virtual_stage) + 1;
  std::int64_t places = own - 1;
  for (std::int32_t k = begin; k < end; ++k)
    if (pipeline_[k] == pipeline_[from.virtual_stage]) places += plan.dp_width(k % plan.stages);
  const std::int32_t ahead = from.pass == Pass::forward && to.pass != Pass::forward ? plan.pipeline.ahead : 0;
  const auto slots = static_cast<std::int32_t>(places / own + shared_slack(from.virtual_stage) + ahead);
  return std::min(slots, plan.owners_of(program, role).rounds());  // no place has more microbatches
}

std::int32_t PlanDraft::shared_slack(std::int32_t virtual_stage) const {
  const std::int32_t chain = pipeline_[virtual_stage];
  const auto last =
      static_cast<std::int32_t>(std::find(pipeline_.rbegin(), pipeline_.rend(), chain).base() - pipeline_.begin());
  // One while the parts of the forward pass meet, one while the parts of the backward pass do.
  for (const LoweredNode& n : low.nodes)
    if (n.mesh >= plan.stages && n.virtual_stage == last - 1 && n.kind == LoweredNode::Kind::op) return 2;
  return 0;
}

std::int32_t PlanDraft::landing_slots(std::int32_t role) const {
  if (virtual_stages == plan.stages || !plan.ordered()) return 1;
  const std::int32_t group = slots_between(role, plan.step_program(), {Pass::forward, role},
                                           {Pass::forward, role + plan.stages});
  return 1 + std::max(0, group - plan.stages);
}

}  // namespace troupe::runtime
