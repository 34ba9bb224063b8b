#include "runtime/planner/passes.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace troupe::runtime {

namespace {

/// Error: on one stage data of a step program leaves a unit for another one and comes back, where units gather their
/// parameters in turn, each once for its pass.
Status check_units_in_a_row(const Graph& graph, const Plan& plan, const Lowered& low) {
  std::map<std::int32_t, std::set<std::int32_t>> reads;  // by unit
  for (const LoweredNode& n : low.nodes)
    for (const auto t : n.in) {
      const auto from = low.producer[t];
      if (from < 0 || n.backward || !plan.is_step_program(n.program)) continue;
      const LoweredNode& maker = low.nodes[from];
      if (maker.unit != n.unit && maker.virtual_stage == n.virtual_stage && maker.kind != LoweredNode::Kind::actor)
        reads[n.unit].insert(maker.unit);
    }
  for (std::size_t before = reads.size() + 1;
       before != reads.size();) {  // takes away units that read none that is left
    before = reads.size();
    for (auto& [unit, of] : reads) std::erase_if(of, [&](std::int32_t read) { return reads.count(read) == 0; });
    std::erase_if(reads, [](const auto& unit) { return unit.second.empty(); });
  }
  if (reads.empty()) return {};
  const auto& [unit, of] = *reads.begin();
  return invalid(
      fmt::format("unit '{}' reads unit '{}', and data of the first comes to the second: with ZeRO 3 units of a "
                  "stage follow each other; name a unit of its own for what is behind, or use ZeRO 2",
                  graph.units()[unit], graph.units()[*of.begin()]));
}

/// Error: data of the step program goes back to an earlier virtual stage, where passes have an order (which knows
/// no such data), or where gathered parameters take turns in the order of the stages.
Status check_flow(const Graph& graph, const Plan& plan, const Lowered& low, const ParameterScheme& scheme) {
  if (!plan.trains() || (!plan.ordered() && !scheme.stores_shares)) return {};
  for (const LoweredNode& n : low.nodes)
    for (const auto t : n.in) {
      const auto from = low.producer[t];
      if (!plan.is_step_program(n.program) || n.backward || from < 0 ||
          low.nodes[from].virtual_stage <= n.virtual_stage)
        continue;
      const auto where = [&](const LoweredNode& node) {
        return fmt::format("unit '{}' on stage {}", graph.units()[node.unit], node.virtual_stage);
      };
      return invalid(
          where(n) + " reads " + where(low.nodes[from]) + ": with " +
          (plan.ordered() ? "pipeline schedule " + to_string(plan.pipeline) : "ZeRO 3") +
          " data goes to the same stage or to later ones; choose other stages (CompileOptions::stage_of_unit)" +
          (plan.ordered() ? ", or 1f1b" : ", or ZeRO 2"));
    }
  return {};
}

}  // namespace

Status make_plan(const Graph& graph, Plan& plan, Lowered low, std::int32_t virtual_stages,
                 const ParameterScheme& scheme, std::int32_t snapshots, bool copies) {
  TROUPE_TRY(check_flow(graph, plan, low, scheme));
  if (plan.trains() && scheme.stores_shares) TROUPE_TRY(check_units_in_a_row(graph, plan, low));
  PlanDraft draft(graph, plan, low, virtual_stages);
  settle_gradients(draft, scheme);
  Segments segments = make_segments(draft);
  take_turns(draft, segments);
  make_user_actors(draft, segments);
  const Edges edges = make_exchanges(draft, segments);
  TROUPE_TRY(make_channels(draft, edges));
  make_credits(draft, segments);
  const Optimizers optimizers = make_parameters(draft, segments, edges, scheme);
  if (snapshots > 0) make_snapshots(draft, snapshots);
  if (copies) make_copies(draft);
  make_rings(draft, segments, optimizers.reused);
  close_chains(draft);
  make_control(draft, optimizers.after_commit);
  fill_operands(draft, segments, edges, optimizers);
  finish_actors(draft);
  cost_exchanges(draft);
  return share_areas(draft);
}

}  // namespace troupe::runtime
