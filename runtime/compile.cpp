// The entry of the compiler: checks, stages, lowering, planning.
#include "runtime/compile.h"

#include <algorithm>

#include "runtime/planner.h"
#include "runtime/verify.h"

namespace troupe::runtime {

Status Planner::run() {
  for (std::int32_t s = 0; s < plan_.stages; ++s) {
    plan_.roles.push_back({});
    plan_.roles.back().stage = s;
  }
  writer_.assign(plan_.tensors.size(), {});
  readers_.assign(plan_.tensors.size(), {});
  make_segments();
  make_actors();
  make_exchanges();
  note_readers();
  TROUPE_TRY(make_channels());
  make_credits();
  TROUPE_TRY(make_parameters());
  make_control();
  fill_operands();
  finish_actors();
  return {};
}

Where Planner::add_actor(std::int32_t role, PlanActor actor) {
  auto& actors = plan_.roles[role].actors;
  actors.push_back(std::move(actor));
  return {role, static_cast<std::int32_t>(actors.size()) - 1};
}

std::int32_t Planner::stash_slots(std::int32_t stage) const {
  // One for each place downstream that could be at work on what this one made: S - s where all are equally wide.
  const auto own = plan_.dp_width(stage);
  std::int64_t places = own - 1;
  for (std::int32_t s = stage; s < plan_.stages; ++s) places += plan_.dp_width(s);
  return static_cast<std::int32_t>(std::min<std::int64_t>(places / own, plan_.program_specs[0].microbatches));
}

namespace {

/// One stage per unit, in the order of the units, none left out.
Status check_cuts(const Graph& graph, const std::vector<std::int32_t>& stage_of_unit, std::int32_t stages) {
  const auto& units = graph.units();
  if (stage_of_unit.size() != units.size())
    return invalid("CompileOptions::stage_of_unit has " + std::to_string(stage_of_unit.size()) + " entries and the graph has " +
                   std::to_string(units.size()) + " units: give one stage per unit, or none at all");
  std::int32_t last = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const std::int32_t s = stage_of_unit[u];
    const std::string where = "unit '" + units[u] + "' is on stage " + std::to_string(s);
    if (s < 0 || s >= stages) return invalid(where + "; there are stages 0 to " + std::to_string(stages - 1));
    if (s < last) return invalid(where + ", the unit before it on stage " + std::to_string(last) + ": stages follow the order of the units");
    if (s > last + (u == 0 ? 0 : 1)) return invalid(where + ": no unit is on stage " + std::to_string(u == 0 ? 0 : last + 1));
    last = s;
  }
  if (last + 1 < stages) return invalid("no unit is on stage " + std::to_string(last + 1) + " of " + std::to_string(stages));
  return {};
}

}  // namespace

Expected<Plan> compile(const Graph& graph, const CompileOptions& options) {
  if (!graph.status().ok()) return graph.status();
  if (graph.programs().empty()) return invalid("the graph has no program");
  if (graph.units().empty()) return invalid("the graph has no unit: name one with unit(...) before the first op");
  if (options.stages.empty()) return invalid("CompileOptions::stages is empty: give one mesh per pipeline stage (see stage_meshes)");
  TROUPE_TRY(check_stage_meshes(options.stages));
  Plan plan;
  plan.programs = graph.programs();
  plan.program_specs = graph.program_specs();
  plan.programs.push_back("digest");
  plan.program_specs.push_back({});
  plan.trains = graph.trains();
  plan.hyper = graph.hyper();
  plan.lanes = options.lanes;
  plan.seed = options.seed;
  plan.costs = options.costs;
  plan.meshes = options.stages;
  plan.stages = static_cast<std::int32_t>(options.stages.size());
  if (plan.lanes < 1 || plan.lanes > plan.program_specs[0].microbatches)
    return invalid("lanes = " + std::to_string(plan.lanes) + " must be between 1 and the " +
                   std::to_string(plan.program_specs[0].microbatches) + " microbatches of a step");
  for (std::int32_t s = 0; s < plan.stages; ++s)
    if (plan.dp_width(s) > plan.lanes)
      return invalid("dp=" + std::to_string(plan.dp_width(s)) + " on stage " + std::to_string(s) + " is more than the " +
                     std::to_string(plan.lanes) + " lanes of a step: use dp=" + std::to_string(plan.lanes) + " or less, or more lanes");

  auto stage_of_unit = options.stage_of_unit;
  if (stage_of_unit.empty()) {
    std::vector<double> costs(graph.units().size(), 0);
    for (const auto& n : graph.nodes()) {
      if (n.kind != Node::Kind::op || n.program != 0) continue;
      std::vector<TensorType> in, out;
      for (Value v : n.in) in.push_back(graph.tensors()[v].type);
      for (Value v : n.out) out.push_back(graph.tensors()[v].type);
      const auto cost = op_cost(*graph.ops().find(n.op), in, out, n.attrs);
      costs[n.unit] += plan.costs.kernel_s(n.op, cost.flops, cost.bytes);
    }
    TROUPE_ASSIGN(stage_of_unit, partition_units(costs, plan.stages));
  }
  TROUPE_TRY(check_cuts(graph, stage_of_unit, plan.stages));
  TROUPE_ASSIGN(Lowered low, lower(graph, stage_of_unit, plan));
  TROUPE_TRY(Planner(graph, plan, std::move(low), options.zero).run());
  return plan;
}

}  // namespace troupe::runtime
