// Where units run: the cuts into (virtual) stages, the mesh of all stages together, and what does not fit.
#include "runtime/compile/assign_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/compile/lowering.h"
#include "runtime/compile/model_stages.h"
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

/// One stage per unit, of its own model, in any order, no stage left out.
Status check_cuts(const Graph& graph, const Plan& plan, const std::vector<std::int32_t>& stage_of_unit,
                  const std::vector<StageRange>& ranges) {
  const auto& units = graph.units();
  const std::int32_t stages = ranges.back().virtual_end(plan);
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
    for (const StageRange& range : ranges)
      if (range.has(graph, u) && (s < range.first || s >= range.virtual_end(plan)))
        return invalid(
            fmt::format("unit '{}' of model '{}' is on stage {}; the model has stages {} to {}", units[u],
                        graph.models()[static_cast<std::size_t>(graph.model_of(static_cast<std::int32_t>(u)))], s,
                        range.first, range.virtual_end(plan) - 1));
  }
  if (const auto none = std::find(used.begin(), used.end(), false); none != used.end())
    return invalid(
        fmt::format("no unit is on stage {} of {}: see CompileOptions::stage_of_unit", none - used.begin(), stages));
  return {};
}

/// Each place of a stage has a microbatch of each program that trains there.
Status check_widths(const Graph& graph, const Plan& plan, const std::vector<std::int32_t>& stage_of_unit) {
  for (const Node& n : graph.nodes()) {
    if (n.kind == Node::Kind::param || !graph.trains(n.program)) continue;
    const std::int32_t s = stage_of_unit[static_cast<std::size_t>(n.unit)] % plan.stages;
    if (const auto microbatches = plan.spec(n.program).microbatches; plan.dp_width(s) > microbatches)
      return invalid(fmt::format(
          "dp={} on stage {} is more than the {} microbatches of a step{}: use dp={} or less, or more microbatches",
          plan.dp_width(s), s, microbatches,
          plan.has_one_step_program() ? "" : " of program '" + plan.programs[n.program].name + "'", microbatches));
  }
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
    if (node.kind == Node::Kind::param || node.kind == Node::Kind::feed_back || node.backward) continue;
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

/// A dp coordinate of a stage with a delay over steps runs a block of microbatches: what it keeps is then S(0) of all.
/// Error: delays of a program on stages of several widths; in one with feeds, whose microbatches come in the order of
/// their numbers.
Status make_blocks(const Graph& graph, const std::vector<UnitPlace>& units, Plan& plan) {
  std::map<std::int32_t, const Node*> first;  // by program: a delay on a stage of several coordinates
  for (const Node& n : graph.nodes()) {
    if (!n.over_steps()) continue;
    const std::int32_t mesh = units[static_cast<std::size_t>(n.unit)].mesh;
    if (mesh >= plan.stages || plan.dp_width(mesh) == 1) continue;
    PlanProgram& program = plan.programs[static_cast<std::size_t>(n.program)];
    if (program.spec.sequential)
      return invalid(
          fmt::format("delay '{}' over steps is on stage {} with dp={}, and program '{}' runs its microbatches in the "
                      "order of their numbers (a feed, or ProgramSpec::sequential): put its unit on a stage with dp=1",
                      n.op, mesh, plan.dp_width(mesh), program.name));
    const auto [other, fresh] = first.try_emplace(n.program, &n);
    if (!fresh && program.blocks != plan.dp_width(mesh))
      return invalid(
          fmt::format("delays '{}' and '{}' over steps of program '{}' are on stages with dp={} and dp={}: "
                      "give these one dp, or put one of their units on a stage with dp=1",
                      other->second->op, n.op, program.name, program.blocks, plan.dp_width(mesh)));
    program.blocks = plan.dp_width(mesh);
  }
  return {};
}

/// Of parameters that updates join to one that is trained: its unit, with which they lie, wherever they were declared.
std::map<Value, std::int32_t> units_joined_to(const Graph& graph) {
  std::map<Value, std::int32_t> units;
  for (const LinkedParams& linked : linked_params(graph))
    for (const Value trained : linked.params)
      if (units.count(linked.params[0]) == 0 &&
          std::any_of(graph.grads().begin(), graph.grads().end(), [&](const auto& g) { return g.param == trained; }))
        for (const Value v : linked.params) units[v] = graph.nodes()[graph.tensors()[trained].node].unit;
  return units;
}

/// Cuts the units of a range, in the order of the data, into runs of about equal cost, one for each of its stages. All
/// stages share the cost of shared units, so shared units are not counted and go with the unit before.
Status cut(const Graph& graph, const Plan& plan, const StageRange& range, const std::vector<std::size_t>& order,
           std::vector<std::int32_t>& stage_of_unit) {
  // By unit: the number of unshared units before it, in the order of the data (a shared unit: before the unshared unit
  // that it goes with).
  std::vector<std::int32_t> run_of(graph.units().size(), 0);
  std::int32_t runs = 0;
  for (const std::size_t u : order) {
    if (!range.has(graph, u)) continue;
    if (!graph.is_shared(static_cast<std::int32_t>(u))) ++runs;
    run_of[u] = std::max(0, runs - 1);
  }
  std::vector<UnitCost> costs(static_cast<std::size_t>(std::max(1, runs)));
  const auto joined_to = units_joined_to(graph);
  for (const auto& n : graph.nodes()) {
    if (n.kind == Node::Kind::param) {
      const auto joined = joined_to.find(n.out[0]);
      const std::int32_t unit = joined == joined_to.end() ? n.unit : joined->second;
      if (!range.has(graph, static_cast<std::size_t>(unit)) || graph.is_shared(unit)) continue;
      const auto& type = graph.tensors()[n.out[0]].type;
      costs[run_of[unit]].param_bytes += static_cast<double>(elements(type.shape) * size_of(type.dtype));
      continue;
    }
    if (!range.has(graph, static_cast<std::size_t>(n.unit))) continue;
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
  std::vector<std::int64_t> widths, parts;
  for (std::int32_t k = range.first; k < range.virtual_end(plan); ++k) {
    widths.push_back(plan.dp_width(k % plan.stages));
    parts.push_back(plan.meshes[k % plan.stages].size() / widths.back());
  }
  if (std::all_of(parts.begin(), parts.end(), [&](std::int64_t n) { return n == parts[0]; })) parts.clear();
  auto stage_of_run = partition_units(costs, widths, parts);
  if (!stage_of_run.ok())
    return range.model < 0
               ? stage_of_run.status()
               : stage_of_run.status().in("model '" + graph.models()[static_cast<std::size_t>(range.model)] + "'");
  for (std::size_t u = 0; u < run_of.size(); ++u)
    if (range.has(graph, u)) stage_of_unit[u] = range.first + (*stage_of_run)[static_cast<std::size_t>(run_of[u])];
  return {};
}

/// The mesh of all stages of a range together, with one more model axis before dp. REQUIRES: the stages' own meshes are
/// equal, and have that axis, of size 1, so that all meshes have the same axes.
std::int32_t share_stages(const StageRange& range, Plan& plan) {
  const Mesh& first = plan.meshes[range.first];
  const std::int32_t end = range.first + range.stages;
  Mesh all = first;
  all.axes[static_cast<std::size_t>(all.axis(stages_axis))].size = range.stages;
  std::vector<Rank> together;
  const std::int64_t width = plan.dp_width(range.first);
  for (std::int64_t row = 0; row < first.size(); row += width)
    for (std::int32_t s = range.first; s < end; ++s) {
      const auto& ranks = plan.meshes[s].ranks;
      together.insert(together.end(), ranks.begin() + row, ranks.begin() + row + width);
    }
  all.ranks = std::move(together);
  plan.meshes.push_back(std::move(all));
  return static_cast<std::int32_t>(plan.meshes.size()) - 1;
}

/// Error: shared units of stages whose meshes differ.
Expected<std::vector<UnitPlace>> units_on_meshes(const Graph& graph, const std::vector<std::int32_t>& stage_of_unit,
                                                 const std::vector<StageRange>& ranges, Plan& plan) {
  std::vector<UnitPlace> units;
  for (const std::int32_t stage : stage_of_unit) units.push_back({stage % plan.stages, stage});
  const auto shared = [&](const StageRange& range, std::size_t u) {
    return range.stages > 1 && range.has(graph, u) && graph.is_shared(static_cast<std::int32_t>(u));
  };
  std::vector<StageRange> sharing;
  for (const StageRange& range : ranges) {
    bool any = false;
    for (std::size_t u = 0; u < units.size(); ++u) any |= shared(range, u);
    if (!any) continue;
    sharing.push_back(range);
    const Mesh& first = plan.meshes[range.first];
    for (std::int32_t s = range.first + 1; s < range.first + range.stages; ++s)
      if (plan.meshes[s].axes != first.axes)
        return invalid(
            fmt::format("units shared by all stages need stages of equal meshes; stage {} has {}, stage {} {}",
                        range.first, to_string(first), s, to_string(plan.meshes[s])));
  }
  if (!sharing.empty())
    for (Mesh& mesh : plan.meshes)
      mesh.axes.insert(dp_axis(mesh) < 0 ? mesh.axes.end() : mesh.axes.begin() + dp_axis(mesh), Axis{stages_axis, 1});
  for (const StageRange& range : sharing) {
    const std::int32_t all = share_stages(range, plan);
    for (std::size_t u = 0; u < units.size(); ++u)
      if (shared(range, u)) units[u].mesh = all;
  }
  return units;
}

}  // namespace

Expected<Staged> assign_units(const Graph& graph, const CompileOptions& options) {
  if (!graph.status().ok()) return graph.status();
  if (graph.programs().empty())
    return invalid("the graph has no program: name one with program(...) before the first op");
  std::vector<Mesh> stages = options.stages;
  std::vector<StageRange> ranges;
  if (!options.models.empty()) {
    TROUPE_ASSIGN(ranges, join_models(graph, options, stages));
  } else {
    if (stages.empty()) stages = stage_meshes({1});
    ranges = {{-1, 0, static_cast<std::int32_t>(stages.size())}};
  }
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
      if (unit.starts_with(graph.programs()[p] + ".") && !plan.has_one_step_program() &&
          std::count(graph.units().begin(), graph.units().end(), unit.substr(graph.programs()[p].size() + 1)) > 0)
        return invalid("unit '" + unit + "' has the name of the actors of program '" + graph.programs()[p] +
                       "' in unit '" + unit.substr(graph.programs()[p].size() + 1) + "': choose another name");
  TROUPE_TRY(check_pipeline(options.pipeline, plan.stages, graph));
  if (options.pipeline.ordered() && !plan.has_one_step_program())
    return invalid("pipeline schedule " + to_string(options.pipeline) +
                   " is an order of the passes of one program, and several of the graph train: use 1f1b");
  if (options.pipeline.ordered() && ranges.size() > 1)
    return invalid("pipeline schedule " + to_string(options.pipeline) +
                   " is an order of the passes of one chain of stages, and each model has its own: use 1f1b");
  plan.pipeline = options.pipeline;
  out.virtual_stages = plan.stages * options.pipeline.chunks;
  auto stage_of_unit = options.stage_of_unit;
  if (stage_of_unit.empty()) {
    stage_of_unit.resize(graph.units().size());
    const auto order = flow_order(graph);
    for (const StageRange& range : ranges) TROUPE_TRY(cut(graph, plan, range, order, stage_of_unit));
  }
  TROUPE_TRY(check_cuts(graph, plan, stage_of_unit, ranges));
  TROUPE_TRY(check_widths(graph, plan, stage_of_unit));
  TROUPE_ASSIGN(out.units, units_on_meshes(graph, stage_of_unit, ranges, plan));
  TROUPE_TRY(make_blocks(graph, out.units, plan));
  TROUPE_TRY(check_owners(options.owners, plan));
  plan.owners = options.owners;
  out.layout_costs = options.layout_costs.value_or(options.costs);
  return out;
}

}  // namespace troupe::runtime
