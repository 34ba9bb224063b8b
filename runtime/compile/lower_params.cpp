// Lowering of parameters: each on the mesh of the stages that read it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "runtime/compile/lowering.h"
#include "runtime/plan/stage_meshes.h"

namespace troupe::runtime {

namespace {

/// Index of the mesh of some stages' places, added where the plan has none: their dp widths side by side.
std::int32_t union_mesh(Plan& plan, const std::vector<std::int32_t>& stages) {
  if (stages.size() == 1) return stages[0];
  Mesh u = plan.meshes[stages[0]];
  const int axis = dp_axis(u);
  for (std::size_t i = 1; i < stages.size() && axis >= 0; ++i) {
    const Mesh& more = plan.meshes[stages[i]];
    // Row-major with dp innermost: append each outer row's ranks to the row.
    const std::int64_t have = u.axes[axis].size, extra = more.axes[axis].size;
    std::vector<Rank> ranks;
    for (std::int64_t row = 0; row * have < u.size(); ++row) {
      ranks.insert(ranks.end(), u.ranks.begin() + row * have, u.ranks.begin() + (row + 1) * have);
      ranks.insert(ranks.end(), more.ranks.begin() + row * extra, more.ranks.begin() + (row + 1) * extra);
    }
    u.axes[axis].size += extra;
    u.ranks = std::move(ranks);
  }
  const auto it = std::find(plan.meshes.begin(), plan.meshes.end(), u);
  if (it != plan.meshes.end()) return static_cast<std::int32_t>(it - plan.meshes.begin());
  plan.meshes.push_back(std::move(u));
  return static_cast<std::int32_t>(plan.meshes.size()) - 1;
}

/// By value of the graph: the meshes on which a parameter is read. What only an update reads lies where the parameters
/// do that it is joined to.
std::vector<std::set<std::int32_t>> read_on_meshes(const Graph& g, const std::vector<UnitPlace>& units) {
  std::vector<std::set<std::int32_t>> meshes(g.tensors().size());
  for (const Node& n : g.nodes())
    for (Value v : n.in)
      if (g.is_param(v)) meshes[static_cast<std::size_t>(v)].insert(units[n.unit].mesh);
  for (const LinkedParams& linked : linked_params(g)) {
    std::set<std::int32_t> all;
    for (const Value v : linked.params)
      if (all.empty()) all = meshes[static_cast<std::size_t>(v)];
    if (all.empty()) all = {units[g.nodes()[g.tensors()[linked.params[0]].node].unit].mesh};
    for (const Value v : linked.params)
      if (auto& own = meshes[static_cast<std::size_t>(v)]; own.empty()) own = all;
  }
  return meshes;
}

}  // namespace

Status check_param_stages(const Graph& g, const Staged& staged) {
  const Plan& plan = staged.plan;
  const auto meshes = read_on_meshes(g, staged.units);
  for (const Node& n : g.nodes()) {
    if (n.kind != Node::Kind::param) continue;
    const auto& read_on = meshes[static_cast<std::size_t>(n.out[0])];
    if (read_on.size() < 2) continue;
    if (*read_on.rbegin() >= plan.stages)
      return invalid(
          "parameter '" + n.name +
          "' is read in a shared unit, which divides it over its stages, and elsewhere: read it in that unit "
          "only");
    const std::int32_t first = *read_on.begin();
    for (const std::int32_t on : read_on)
      if (!same_model_axes(plan.meshes[on], plan.meshes[first]))
        return invalid(
            fmt::format("parameter '{}' is read on stages {} and {}, whose meshes {} and {} have model axes of "
                        "other sizes: read it on stages that differ in the width of dp only",
                        n.name, first, on, to_string(plan.meshes[first]), to_string(plan.meshes[on])));
  }
  for (const LinkedParams& linked : linked_params(g))
    for (const Value v : linked.params) {
      const Value first = linked.params[0];
      const auto &own = meshes[static_cast<std::size_t>(v)], &others = meshes[static_cast<std::size_t>(first)];
      if (own != others)
        return invalid(
            fmt::format("parameters '{}' and '{}' are joined by an update (Graph::next), and ops read them "
                        "on stages {} and {}: name these ops in one unit, or let the update read one of them",
                        g.tensors()[first].name, g.tensors()[v].name, fmt::join(others, ", "), fmt::join(own, ", ")));
    }
  return {};
}

void lower_params(const Graph& g, const std::vector<UnitPlace>& units, Plan& plan, Lowered& low,
                  TensorLayouts& layouts) {
  const auto meshes = read_on_meshes(g, units);
  for (const Node& n : g.nodes()) {
    if (n.kind != Node::Kind::param) continue;
    const auto& read_on = meshes[static_cast<std::size_t>(n.out[0])];
    if (read_on.empty()) continue;
    LoweredParam p;
    p.unit = n.unit;
    PlanTensor t;
    t.name = n.name;
    t.shape = g.tensors()[n.out[0]].type.shape;
    t.dtype = g.tensors()[n.out[0]].type.dtype;
    t.rate = Rate::step;
    t.mesh = union_mesh(plan, {read_on.begin(), read_on.end()});
    p.stages = plan.stages_on(t.mesh);
    t.sbp.assign(plan.meshes[t.mesh].axes.size(), Sbp::B());
    p.tensor = layouts.home[n.out[0]] = static_cast<std::int32_t>(plan.tensors.size());
    plan.tensors.push_back(std::move(t));
    low.producer.push_back(-1);
    plan.params.push_back({n.name, p.tensor, n.init.kind, n.init.value, n.decay});
    plan.params.back().kept = n.kept;
    low.params.push_back(std::move(p));
  }
}

}  // namespace troupe::runtime
