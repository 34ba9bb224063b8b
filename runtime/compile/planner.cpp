#include "runtime/compile/planner.h"

#include <algorithm>

namespace troupe::runtime {

Status Planner::run() {
  for (std::int32_t s = 0; s < plan_.stages; ++s) {
    plan_.roles.push_back({});
    plan_.roles.back().stage = s;
  }
  writer_.assign(plan_.tensors.size(), {});
  readers_.assign(plan_.tensors.size(), {});
  split_backward();
  make_segments();
  take_turns();
  make_actors();
  make_exchanges();
  note_readers();
  TROUPE_TRY(make_channels());
  make_credits();
  TROUPE_TRY(make_parameters());
  if (snapshots_ > 0) make_snapshots();
  make_rings();
  close_chains();
  make_control();
  fill_operands();
  finish_actors();
  return share_areas();
}

std::int32_t Planner::add_tensor(PlanTensor tensor, const std::string& name) {
  tensor.name = name;
  plan_.tensors.push_back(std::move(tensor));
  low_.producer.push_back(-1);
  return static_cast<std::int32_t>(plan_.tensors.size()) - 1;
}

ActorRef Planner::add_actor(std::int32_t role, PlanActor actor, std::int32_t virtual_stage) {
  actor.virtual_stage = virtual_stage;
  auto& actors = plan_.roles[role].actors;
  actors.push_back(std::move(actor));
  const ActorRef where{role, static_cast<std::int32_t>(actors.size()) - 1};
  return where;
}

std::int32_t Planner::slots_between(std::int32_t role, PassAt from, PassAt to) const {
  const auto own = plan_.dp_width(role);
  if (plan_.ordered()) {
    const std::int32_t stages = plan_.stages, stage = from.virtual_stage % stages;
    std::int32_t most = 1;
    for (std::int64_t d = 0; d < own; ++d) {
      const auto order = pass_order(plan_.pipeline, stages, stage, static_cast<std::int32_t>(plan_.microbatches(0, role, d).size()));
      most = std::max(most, most_between(order, {from.pass, from.virtual_stage / stages}, {to.pass, to.virtual_stage / stages}));
    }
    return most;
  }
  // One for each place that could be at work in between: downstream between forward and backward, S - s where all are
  // equally wide; upstream between backward and weights.
  const std::int32_t begin = to.pass == Pass::weights ? 0 : std::min(from.virtual_stage, to.virtual_stage);
  const std::int32_t end = from.pass == Pass::forward && to.pass != Pass::forward ? virtual_stages_ : std::max(from.virtual_stage, to.virtual_stage) + 1;
  std::int64_t places = own - 1;
  for (std::int32_t k = begin; k < end; ++k) places += plan_.dp_width(k % plan_.stages);
  return static_cast<std::int32_t>(std::min<std::int64_t>(places / own + shared_slack(), plan_.program_specs[0].microbatches));
}

std::int32_t Planner::shared_slack() const {
  // One while the parts of the forward pass meet, one while those of the backward pass do.
  for (const LoweredNode& n : low_.nodes)
    if (n.mesh >= plan_.stages && n.virtual_stage == virtual_stages_ - 1 && n.kind == LoweredNode::Kind::op) return 2;
  return 0;
}

std::int32_t Planner::landing_slots(std::int32_t role) const {
  if (virtual_stages_ == plan_.stages || !plan_.ordered()) return 1;
  const std::int32_t group = slots_between(role, {Pass::forward, role}, {Pass::forward, role + plan_.stages});
  return 1 + std::max(0, group - plan_.stages);
}

}  // namespace troupe::runtime
