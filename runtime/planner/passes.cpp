#include "runtime/planner/passes.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace troupe::runtime {

namespace {

/// The node that has made what a tensor holds, before any boxing; -1: a parameter.
std::int32_t maker_of(const Lowered& low, std::int32_t tensor) {
  auto from = low.producer[tensor];
  while (from >= 0 && low.nodes[from].kind == LoweredNode::Kind::boxing) from = low.producer[low.nodes[from].in[0]];
  return from;
}

/// Error: on one stage data leaves a unit for another one and comes back, where units gather their parameters in turn,
/// each once for its pass.
Status check_units_in_a_row(const Graph& graph, const Lowered& low) {
  using Stage = std::pair<std::int32_t, std::int32_t>;                     // program, virtual stage
  std::map<Stage, std::map<std::int32_t, std::set<std::int32_t>>> stages;  // by unit: those whose ops its ops read
  for (const LoweredNode& n : low.nodes)
    for (const auto t : n.in) {
      const auto from = maker_of(low, t);
      // An end of a delay has no parameters to gather.
      if (from < 0 || n.backward || n.kind != LoweredNode::Kind::op || n.end != LoweredNode::End::none) continue;
      const LoweredNode& maker = low.nodes[from];
      if (maker.kind == LoweredNode::Kind::op && maker.unit != n.unit && maker.virtual_stage == n.virtual_stage)
        stages[{n.program, n.virtual_stage}][n.unit].insert(maker.unit);
    }
  for (auto& entry : stages) {
    auto& reads = entry.second;
    for (std::size_t before = reads.size() + 1; before != reads.size();) {  // without units that read none that is left
      before = reads.size();
      for (auto& [unit, of] : reads) std::erase_if(of, [&](std::int32_t read) { return reads.count(read) == 0; });
      std::erase_if(reads, [](const auto& unit) { return unit.second.empty(); });
    }
    if (reads.empty()) continue;
    // Each that is left reads another one: who follows them comes to a unit for the second time.
    std::set<std::int32_t> seen;
    std::int32_t unit = reads.begin()->first;
    while (seen.insert(unit).second) unit = *reads.at(unit).begin();
    return invalid(
        fmt::format("unit '{}' reads unit '{}', and data of the first comes to the second: with ZeRO 3 units of "
                    "a stage follow each other; name a unit of its own for what is behind, or use ZeRO 2",
                    graph.units()[unit], graph.units()[*reads.at(unit).begin()]));
  }
  return {};
}

/// Error: data of the step program goes back to an earlier virtual stage, where passes have an order (which knows
/// no such data), or where gathered parameters take turns in the order of the stages.
Status check_flow(const Graph& graph, const Plan& plan, const Lowered& low, const ParameterScheme& scheme) {
  if (!plan.trains() || (!plan.ordered() && !scheme.stores_shares)) return {};
  for (const LoweredNode& n : low.nodes)
    for (const auto t : n.in) {
      const auto from = maker_of(low, t);
      if (!plan.is_step_program(n.program) || n.backward || n.kind == LoweredNode::Kind::boxing || from < 0 ||
          n.end == LoweredNode::End::keeps || low.nodes[from].virtual_stage <= n.virtual_stage)
        continue;
      const auto where = [&](const LoweredNode& node) {
        return fmt::format("unit '{}' on stage {}", graph.units()[node.unit], node.virtual_stage);
      };
      const bool apart = graph.model_of(n.unit) != graph.model_of(low.nodes[from].unit);
      return invalid(fmt::format(
          "{} reads {}: with {} data goes to the same stage or to later ones; choose other stages "
          "(CompileOptions::{}), or "
          "{}",
          where(n), where(low.nodes[from]), plan.ordered() ? "pipeline schedule " + to_string(plan.pipeline) : "ZeRO 3",
          apart ? "models, their order" : "stage_of_unit", plan.ordered() ? "1f1b" : "ZeRO 2"));
    }
  return {};
}

}  // namespace

Status make_plan(const Graph& graph, Plan& plan, Lowered low, std::int32_t virtual_stages,
                 const ParameterScheme& scheme, std::int32_t snapshots, bool copies) {
  TROUPE_TRY(check_flow(graph, plan, low, scheme));
  if (plan.trains() && scheme.stores_shares) TROUPE_TRY(check_units_in_a_row(graph, low));
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
