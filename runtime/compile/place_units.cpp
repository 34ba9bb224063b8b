// Where units run: the cuts into (virtual) stages, the mesh of all stages together, and what does not fit.
#include <algorithm>

#include "runtime/compile/lowered.h"

namespace troupe::runtime {

namespace {

/// Interleaving needs a pipeline to begin with, and a unit for each virtual stage.
Status check_pipeline(const Pipeline& pipeline, std::int32_t stages, const Graph& graph) {
  const bool interleaved = pipeline.kind == Pipeline::Kind::interleaved;
  if (interleaved ? pipeline.chunks < 2 : pipeline.chunks != 1)
    return invalid("CompileOptions::pipeline is " + to_string(pipeline) + " with " + std::to_string(pipeline.chunks) +
                   " chunks a stage: interleaved has 2 or more, others have 1");
  if (!interleaved) return {};
  if (stages == 1)
    return invalid("pipeline schedule " + to_string(pipeline) + " needs pp=2 or more: with one stage there is no bubble to divide; use 1f1b");
  std::int64_t units = 0;
  for (std::size_t u = 0; u < graph.units().size(); ++u) units += !graph.is_shared(static_cast<std::int32_t>(u));
  if (std::int64_t{stages} * pipeline.chunks > units)
    return invalid("pipeline schedule " + to_string(pipeline) + " on " + std::to_string(stages) + " stages needs " +
                   std::to_string(std::int64_t{stages} * pipeline.chunks) + " units (layers) at least, and there are " + std::to_string(units) +
                   (units / stages < 2 ? ": use 1f1b or fewer stages" : ": use interleaved:" + std::to_string(units / stages) + " or less"));
  return {};
}

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

/// Cuts the units into runs of about equal cost. All stages share the cost of shared units, so these are not counted
/// and go with the unit before.
Expected<std::vector<std::int32_t>> cut(const Graph& graph, const CostModel& model, std::int32_t depths) {
  std::vector<std::int32_t> run_of(graph.units().size(), 0);   // unit -> index among those that are not shared
  std::int32_t runs = 0;
  for (std::size_t u = 0; u < run_of.size(); ++u) {
    if (!graph.is_shared(static_cast<std::int32_t>(u))) ++runs;
    run_of[u] = std::max(0, runs - 1);
  }
  std::vector<double> costs(static_cast<std::size_t>(std::max(1, runs)), 0);
  for (const auto& n : graph.nodes()) {
    if (n.kind != Node::Kind::op || n.program != 0 || graph.is_shared(n.unit)) continue;
    std::vector<TensorType> in, out;
    for (Value v : n.in) in.push_back(graph.tensors()[v].type);
    for (Value v : n.out) out.push_back(graph.tensors()[v].type);
    const auto cost = op_cost(*graph.ops().find(n.op), in, out, n.attrs);
    costs[run_of[n.unit]] += model.kernel_s(n.op, cost.flops, cost.bytes);
  }
  TROUPE_ASSIGN(const auto depth_of_run, partition_units(costs, depths));
  for (auto& r : run_of) r = depth_of_run[r];
  return run_of;
}

/// The mesh of all stages together, as one more model axis before dp; the stages' own meshes get that axis with size 1,
/// so that all meshes have the same axes.
Expected<std::int32_t> share_stages(Plan& plan) {
  for (std::int32_t s = 1; s < plan.stages; ++s)
    if (plan.dp_width(s) != plan.dp_width(0))
      return invalid("units shared by all stages need stages of one width; stage 0 has dp=" + std::to_string(plan.dp_width(0)) +
                     ", stage " + std::to_string(s) + " dp=" + std::to_string(plan.dp_width(s)));
  Mesh all = plan.meshes[0];
  const auto at = dp_axis(all) < 0 ? all.axes.size() : static_cast<std::size_t>(dp_axis(all));
  all.axes.insert(all.axes.begin() + static_cast<std::ptrdiff_t>(at), {"stages", plan.stages});
  std::vector<Rank> together;
  const std::int64_t width = plan.dp_width(0);
  for (std::int64_t row = 0; row < plan.meshes[0].size(); row += width)
    for (std::int32_t s = 0; s < plan.stages; ++s) {
      const auto& ranks = plan.meshes[s].ranks;
      together.insert(together.end(), ranks.begin() + row, ranks.begin() + row + width);
    }
  all.ranks = std::move(together);
  for (Mesh& mesh : plan.meshes) mesh.axes.insert(mesh.axes.begin() + static_cast<std::ptrdiff_t>(at), {"stages", 1});
  plan.meshes.push_back(std::move(all));
  return static_cast<std::int32_t>(plan.meshes.size()) - 1;
}

Expected<std::vector<UnitPlace>> place_units(const Graph& graph, const std::vector<std::int32_t>& depth_of_unit, Plan& plan) {
  std::int32_t all = -1;
  std::vector<UnitPlace> units;
  for (std::size_t u = 0; u < depth_of_unit.size(); ++u) {
    const bool shared = plan.stages > 1 && graph.is_shared(static_cast<std::int32_t>(u));
    if (shared && all < 0) { TROUPE_ASSIGN(all, share_stages(plan)); }
    units.push_back({shared ? all : depth_of_unit[u] % plan.stages, depth_of_unit[u]});
  }
  return units;
}

}  // namespace

Expected<Staged> assign_units(const Graph& graph, const CompileOptions& options) {
  if (!graph.status().ok()) return graph.status();
  if (graph.programs().empty()) return invalid("the graph has no program");
  if (graph.units().empty()) return invalid("the graph has no unit: name one with unit(...) before the first op");
  if (options.stages.empty()) return invalid("CompileOptions::stages is empty: give one mesh per pipeline stage (see stage_meshes)");
  TROUPE_TRY(check_stage_meshes(options.stages));
  Staged out;
  Plan& plan = out.plan;
  plan.programs = graph.programs();
  plan.program_specs = graph.program_specs();
  plan.programs.push_back("digest");
  plan.program_specs.push_back({});
  if (options.snapshots > 0) {
    plan.programs.push_back("snapshot");
    plan.program_specs.push_back({});
  }
  plan.trains = graph.trains();
  plan.hyper = graph.hyper();
  plan.seed = options.seed;
  plan.costs = options.costs;
  plan.meshes = options.stages;
  plan.stages = static_cast<std::int32_t>(options.stages.size());
  if (options.zero < 0 || options.zero > 3) return invalid("CompileOptions::zero is " + std::to_string(options.zero) + ": ZeRO has stages 0 to 3");
  const auto microbatches = plan.program_specs[0].microbatches;
  for (std::int32_t s = 0; s < plan.stages && plan.trains; ++s)
    if (plan.dp_width(s) > microbatches)
      return invalid("dp=" + std::to_string(plan.dp_width(s)) + " on stage " + std::to_string(s) + " is more than the " +
                     std::to_string(microbatches) + " microbatches of a step: use dp=" + std::to_string(microbatches) + " or less, or more microbatches");
  TROUPE_TRY(check_owners(options.owners, plan));
  plan.owners = options.owners;
  TROUPE_TRY(check_pipeline(options.pipeline, plan.stages, graph));
  plan.pipeline = options.pipeline;
  out.depths = plan.stages * options.pipeline.chunks;
  auto stage_of_unit = options.stage_of_unit;
  if (stage_of_unit.empty()) { TROUPE_ASSIGN(stage_of_unit, cut(graph, plan.costs, out.depths)); }
  TROUPE_TRY(check_cuts(graph, stage_of_unit, out.depths));
  TROUPE_ASSIGN(out.units, place_units(graph, stage_of_unit, plan));
  return out;
}

}  // namespace troupe::runtime
