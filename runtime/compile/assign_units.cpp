// Where units run: the cuts into (virtual) stages, the mesh of all stages together, and what does not fit.
#include "runtime/compile/assign_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/planner/lowered.h"

namespace troupe::runtime {

namespace {

/// Interleaving needs a pipeline to begin with, and a unit for each virtual stage; an order of passes leaves nothing to
/// run ahead with.
Status check_pipeline(const Pipeline& pipeline, std::int32_t stages, const Graph& graph) {
  const bool interleaved = pipeline.kind == Pipeline::Kind::interleaved;
  if (interleaved ? pipeline.chunks < 2 : pipeline.chunks != 1)
    return invalid(
        fmt::format("CompileOptions::pipeline is {} with {} chunks a stage: interleaved has 2 or more, others have 1",
                    to_string(pipeline), pipeline.chunks));
  if (pipeline.ahead < 0 || (pipeline.ahead > 0 && pipeline.ordered()))
    return invalid(fmt::format(
        "CompileOptions::pipeline has {} microbatches ahead: 1f1b has 0 or more; interleaved and zero-bubble have 0, "
        "for they have an order of passes",
        pipeline.ahead));
  if (pipeline.weights_apart && pipeline.ordered())
    return invalid(
        fmt::format("CompileOptions::pipeline has weight gradients apart: 1f1b may; {} has an order of passes",
                    to_string(pipeline)));
  if (!interleaved) return {};
  if (stages == 1)
    return invalid("pipeline schedule " + to_string(pipeline) +
                   " needs pp=2 or more: with one stage there is no bubble to divide; use 1f1b");
  std::int64_t units = 0;
  for (std::size_t u = 0; u < graph.units().size(); ++u) units += !graph.is_shared(static_cast<std::int32_t>(u));
  if (std::int64_t{stages} * pipeline.chunks > units)
    return invalid(fmt::format("pipeline schedule {} on {} stages needs {} units (layers) at least, and there are {}{}",
                               to_string(pipeline), stages, std::int64_t{stages} * pipeline.chunks, units,
                               units / stages < 2 ? ": use 1f1b or fewer stages"
                                                  : fmt::format(": use interleaved:{} or less", units / stages)));
  return {};
}

/// One stage per unit, in any order, no stage left out.
Status check_cuts(const Graph& graph, const std::vector<std::int32_t>& stage_of_unit, std::int32_t stages) {
  const auto& units = graph.units();
  if (stage_of_unit.size() != units.size())
    return invalid(
        fmt::format("CompileOptions::stage_of_unit has {} entries and the graph has {} units: give one stage per unit, "
                    "or none at all",
                    stage_of_unit.size(), units.size()));
  std::vector<bool> used(static_cast<std::size_t>(stages));
  for (std::size_t u = 0; u < units.size(); ++u) {
    const std::int32_t s = stage_of_unit[u];
    if (s < 0 || s >= stages)
      return invalid(fmt::format("unit '{}' is on stage {}; there are stages 0 to {}", units[u], s, stages - 1));
    used[static_cast<std::size_t>(s)] = true;
  }
  if (const auto none = std::find(used.begin(), used.end(), false); none != used.end())
    return invalid(
        fmt::format("no unit is on stage {} of {}: see CompileOptions::stage_of_unit", none - used.begin(), stages));
  return {};
}

/// The units in the order in which data flows through the programs of a step: each behind all that it reads. Of several
/// that may come next, and of units that read one another, the one comes first whose first node does; the order of
/// declaration does not matter.
std::vector<std::size_t> flow_order(const Graph& graph) {
  const std::size_t n = graph.units().size();
  std::vector<std::size_t> first(n, graph.nodes().size());  // node of each unit
  std::vector<std::set<std::size_t>> read_by(n), reads(n);
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (node.kind == Node::Kind::param || node.backward) continue;
    const auto unit = static_cast<std::size_t>(node.unit);
    first[unit] = std::min(first[unit], i);
    for (Value v : node.in) {
      const auto from = static_cast<std::size_t>(graph.nodes()[graph.tensors()[v].node].unit);
      if (!graph.is_step_program(node.program) || graph.is_param(v) || from == unit) continue;
      reads[unit].insert(from);
      read_by[from].insert(unit);
    }
  }
  std::set<std::pair<std::size_t, std::size_t>> left, ready;  // (first node, unit)
  for (std::size_t u = 0; u < n; ++u) (reads[u].empty() ? ready : left).insert({first[u], u});
  std::vector<std::size_t> order;
  while (order.size() < n) {
    auto& from = ready.empty() ? left : ready;
    const auto unit = from.extract(from.begin()).value().second;
    order.push_back(unit);
    for (const auto reader : read_by[unit])
      if (reads[reader].erase(unit) > 0 && reads[reader].empty() && left.erase({first[reader], reader}) > 0)
        ready.insert({first[reader], reader});
  }
  return order;
}

/// Cuts the units, in the order of the data, into runs of about equal cost. All stages share the cost of shared units,
/// so shared units are not counted and go with the unit before.
Expected<std::vector<std::int32_t>> cut(const Graph& graph, const Plan& plan, std::int32_t virtual_stages) {
  // By unit: the number of unshared units before it, in the order of the data (a shared unit: before the unshared unit
  // that it goes with); in the end the virtual stage.
  std::vector<std::int32_t> run_of(graph.units().size(), 0);
  std::int32_t runs = 0;
  for (const std::size_t u : flow_order(graph)) {
    if (!graph.is_shared(static_cast<std::int32_t>(u))) ++runs;
    run_of[u] = std::max(0, runs - 1);
  }
  std::vector<UnitCost> costs(static_cast<std::size_t>(std::max(1, runs)));
  for (const auto& n : graph.nodes()) {
    if (n.kind == Node::Kind::param && !graph.is_shared(n.unit)) {
      const auto& type = graph.tensors()[n.out[0]].type;
      costs[run_of[n.unit]].param_bytes += static_cast<double>(elements(type.shape) * size_of(type.dtype));
    }
    if (n.kind != Node::Kind::op || !plan.is_step_program(n.program) || graph.is_shared(n.unit)) continue;
    std::vector<TensorType> in, out;
    for (Value v : n.in) in.push_back(graph.tensors()[v].type);
    for (Value v : n.out) out.push_back(graph.tensors()[v].type);
    const auto cost = op_cost(*graph.ops().find(n.op), in, out, n.attrs);
    // Of a microbatch of the first program: another one may have more of them in a step, or fewer.
    const double times = static_cast<double>(plan.spec(n.program).microbatches) /
                         static_cast<double>(plan.step_spec().microbatches);
    costs[run_of[n.unit]].seconds += times * plan.costs.kernel_s(n.op, cost.flops, cost.bytes);
  }
  std::vector<std::int64_t> widths;
  for (std::int32_t k = 0; k < virtual_stages; ++k) widths.push_back(plan.dp_width(k % plan.stages));
  TROUPE_ASSIGN(const auto stage_of_run, partition_units(costs, widths));
  for (auto& r : run_of) r = stage_of_run[r];
  return run_of;
}

/// The mesh of all stages together, as one more model axis before dp; the stages' own meshes get that axis with size 1,
/// so that all meshes have the same axes.
Expected<std::int32_t> share_stages(Plan& plan) {
  for (std::int32_t s = 1; s < plan.stages; ++s)
    if (plan.dp_width(s) != plan.dp_width(0))
      return invalid(
          fmt::format("units shared by all stages need stages of one width; stage 0 has dp={}, stage {} dp={}",
                      plan.dp_width(0), s, plan.dp_width(s)));
  Mesh all = plan.meshes[0];
  const auto at = dp_axis(all) < 0 ? all.axes.size() : static_cast<std::size_t>(dp_axis(all));
  all.axes.insert(all.axes.begin() + static_cast<std::ptrdiff_t>(at), Axis{stages_axis, plan.stages});
  std::vector<Rank> together;
  const std::int64_t width = plan.dp_width(0);
  for (std::int64_t row = 0; row < plan.meshes[0].size(); row += width)
    for (std::int32_t s = 0; s < plan.stages; ++s) {
      const auto& ranks = plan.meshes[s].ranks;
      together.insert(together.end(), ranks.begin() + row, ranks.begin() + row + width);
    }
  all.ranks = std::move(together);
  for (Mesh& mesh : plan.meshes)
    mesh.axes.insert(mesh.axes.begin() + static_cast<std::ptrdiff_t>(at), Axis{stages_axis, 1});
  plan.meshes.push_back(std::move(all));
  return static_cast<std::int32_t>(plan.meshes.size()) - 1;
}

Expected<std::vector<UnitPlace>> units_on_meshes(const Graph& graph, const std::vector<std::int32_t>& stage_of_unit,
                                                 Plan& plan) {
  std::int32_t all = -1;
  std::vector<UnitPlace> units;
  for (std::size_t u = 0; u < stage_of_unit.size(); ++u) {
    const bool shared = plan.stages > 1 && graph.is_shared(static_cast<std::int32_t>(u));
    if (shared && all < 0) {
      TROUPE_ASSIGN(all, share_stages(plan));
    }
    units.push_back({shared ? all : stage_of_unit[u] % plan.stages, stage_of_unit[u]});
  }
  return units;
}

}  // namespace

Expected<Staged> assign_units(const Graph& graph, const CompileOptions& options) {
  if (!graph.status().ok()) return graph.status();
  if (graph.programs().empty())
    return invalid("the graph has no program: name one with program(...) before the first op");
  const auto stages = options.stages.empty() ? stage_meshes({1}) : options.stages;
  TROUPE_TRY(check_stage_meshes(stages));
  if (stages[0].axis(stages_axis) >= 0)  // all meshes have its axes
    return invalid(
        fmt::format("stage 0: mesh {} has an axis called '{}', the compiler's name for all stages together: "
                    "choose another one",
                    to_string(stages[0]), stages_axis));
  TROUPE_TRY(options.costs.validate().in("CompileOptions::costs"));
  if (options.layout_costs) TROUPE_TRY(options.layout_costs->validate().in("CompileOptions::layout_costs"));
  Staged out;
  Plan& plan = out.plan;
  for (std::int32_t p = 0; p < std::ssize(graph.programs()); ++p) {
    plan.programs.push_back({graph.programs()[p], graph.program_specs()[p], graph.is_step_program(p), {}});
    if (graph.trains(p)) plan.programs.back().optimizer = graph.hyper(p);
  }
  const auto reads_versions = [&plan](const char* name) { plan.programs.push_back({name, {}, false, {}}); };
  reads_versions("digest");
  if (options.snapshots > 0) reads_versions("snapshot");
  if (options.keeps_copies) {
    if (options.keeps_version)
      return invalid("CompileOptions::keeps_version and keeps_copies are both set: one is enough");
    reads_versions("copy");
  }
  plan.seed = options.seed;
  plan.costs = options.costs;
  plan.meshes = stages;
  plan.stages = static_cast<std::int32_t>(stages.size());
  if (options.zero < 0 || options.zero > 3)
    return invalid(fmt::format("CompileOptions::zero is {}: ZeRO has stages 0 to 3", options.zero));
  for (std::int32_t p = 0; p < std::ssize(graph.programs()); ++p)  // actors of "evaluate" are named "evaluate.UNIT..."
    for (const std::string& unit : graph.units())
      if (unit.starts_with(graph.programs()[p] + ".") && !plan.has_one_step_program())
        return invalid("unit '" + unit + "' has the name of the actors of program '" + graph.programs()[p] +
                       "' in unit '" + unit.substr(graph.programs()[p].size() + 1) + "': choose another name");
  for (const std::int32_t p : plan.training())
    for (std::int32_t s = 0; s < plan.stages; ++s)
      if (const auto microbatches = plan.spec(p).microbatches; plan.dp_width(s) > microbatches)
        return invalid(fmt::format(
            "dp={} on stage {} is more than the {} microbatches of a step{}: use dp={} or less, or more microbatches",
            plan.dp_width(s), s, microbatches,
            plan.has_one_step_program() ? "" : " of program '" + plan.programs[p].name + "'", microbatches));
  TROUPE_TRY(check_owners(options.owners, plan));
  plan.owners = options.owners;
  TROUPE_TRY(check_pipeline(options.pipeline, plan.stages, graph));
  if (options.pipeline.ordered() && !plan.has_one_step_program())
    return invalid("pipeline schedule " + to_string(options.pipeline) +
                   " is an order of the passes of one program, and several of the graph train: use 1f1b");
  plan.pipeline = options.pipeline;
  out.virtual_stages = plan.stages * options.pipeline.chunks;
  auto stage_of_unit = options.stage_of_unit;
  if (stage_of_unit.empty()) {
    TROUPE_ASSIGN(stage_of_unit, cut(graph, plan, out.virtual_stages));
  }
  TROUPE_TRY(check_cuts(graph, stage_of_unit, out.virtual_stages));
  TROUPE_ASSIGN(out.units, units_on_meshes(graph, stage_of_unit, plan));
  out.layout_costs = options.layout_costs.value_or(options.costs);
  return out;
}

}  // namespace troupe::runtime
