#include "runtime/place/round_boxing.h"

#include <algorithm>

namespace troupe::runtime {

namespace {

std::vector<std::int64_t> model_coord(const Mesh& mesh, std::int64_t position) {
  auto coord = mesh.coord(position);
  if (dp_axis(mesh) >= 0) coord[dp_axis(mesh)] = 0;
  return coord;
}

/// Positions of a mesh with these model coordinates, by dp coordinate: dp is the innermost axis of all meshes.
std::vector<std::int64_t> along_dp(const Mesh& mesh, const std::vector<std::int64_t>& model) {
  std::vector<std::int64_t> out;
  for (std::int64_t p = 0; p < mesh.size(); ++p)
    if (model_coord(mesh, p) == model) out.push_back(p);
  return out;
}

struct Side {  // one side of an exchange: its places along dp
  const Mesh& mesh;
  std::vector<std::int64_t> positions;
  std::vector<Holding> holdings(const Layout& layout) const {
    std::vector<Holding> out;
    for (auto p : positions) out.push_back({mesh.ranks[p], layout.extent_at(p), {}});
    return out;
  }
};

}  // namespace

Expected<std::vector<BoxingPlan>> gather_boxings(const Plan& plan, const PlanExchange& x, std::int32_t round,
                                                 Rank self) {
  const Mesh &from = plan.meshes[plan.tensors[x.moves[0].from].mesh],
             &to = plan.meshes[plan.tensors[x.moves[0].to].mesh];
  // All meshes of a plan have the same axes; the shares' mesh has every place that takes part.
  const auto model = model_coord(from, from.find(self));
  const Side source{from, along_dp(from, model)};
  Side target{to, along_dp(to, model)};
  for (const Side& side : {source, target})
    if (static_cast<std::int64_t>(side.positions.size()) != side.mesh.axis_size("dp"))
      return invalid("exchange '" + x.name + "': meshes " + to_string(from) + " and " + to_string(to) +
                     " do not have the same model axes");
  const Schedule schedule = plan.schedule(x);
  std::int64_t d = 0;
  std::erase_if(target.positions, [&](auto) { return !schedule.runs_in_round(d++, round); });
  std::vector<BoxingPlan> out;
  for (const auto& move : x.moves) {
    auto boxing = plan_boxing(HoldingList(source.holdings(plan.layout(move.from, 0))),
                              target.holdings(plan.layout(move.to, 0)));
    if (!boxing.ok())
      return boxing.status().in("exchange '" + x.name + "', tensor '" + plan.tensors[move.from].name + "'");
    out.push_back(*std::move(boxing));
  }
  return out;
}

}  // namespace troupe::runtime
