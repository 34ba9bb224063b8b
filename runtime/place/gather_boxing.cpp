#include "runtime/place/gather_boxing.h"
#include "placement/boxing.h"

#include <algorithm>

namespace troupe::runtime {

namespace {

/// Positions of a mesh with these coordinates on all axes but dp, by dp coordinate. Empty where the mesh has none.
std::vector<std::int64_t> along_dp(const Mesh& mesh, std::vector<std::int64_t> coord) {
  if (coord.size() != mesh.axes.size()) return {};
  std::vector<bool> free(coord.size(), false);
  if (const int dp = dp_axis(mesh); dp >= 0) coord[dp] = 0, free[dp] = true;
  for (std::size_t a = 0; a < coord.size(); ++a)
    if (coord[a] >= mesh.axes[a].size) return {};
  return mesh.group(mesh.position(coord), free);
}

std::vector<Holding> holdings_at(const Layout& layout, const std::vector<std::int64_t>& positions) {
  std::vector<Holding> out;
  out.reserve(positions.size());
  for (const auto p : positions) out.push_back({layout.mesh.ranks[p], layout.extent_at(p), {}});
  return out;
}

}  // namespace

Expected<std::vector<BoxingGroup>> gather_groups(const Plan& plan, const PlanExchange& x, std::int32_t round,
                                                 Rank self) {
  const Mesh &from = plan.meshes[plan.tensors[x.moves[0].from].mesh],
             &to = plan.meshes[plan.tensors[x.moves[0].to].mesh];
  // The meshes of a parameter's stages have the same model axes; the shares' mesh has every place that takes part.
  std::vector<std::int64_t> sources, targets;
  if (const std::int64_t own = from.find(self); own >= 0) {
    const auto coord = from.coord(own);
    sources = along_dp(from, coord);
    targets = along_dp(to, coord);
  }
  if (sources.empty() || targets.empty())
    return invalid("exchange '" + x.name + "': meshes " + to_string(from) + " and " + to_string(to) +
                   " do not have the same model axes");
  const MicrobatchOwners owners = plan.owners_of(x);
  std::int64_t d = 0;
  std::erase_if(targets, [&](auto) { return !owners.runs_in_round(d++, round); });
  std::vector<BoxingGroup> out;
  for (const auto& move : x.moves) {
    const Layout shares = plan.layout(move.from, 0);
    BoxingGroup& group = out.emplace_back();
    group.from = holdings_at(shares, sources);
    group.to = holdings_at(plan.layout(move.to, 0), targets);
    // A split gives each dp coordinate rows of its own.
    group.replicas = sources.size() > 1 && !shares.sbp[dp_axis(from)].is_split();
  }
  return out;
}

Expected<std::vector<BoxingPlan>> gather_boxings(const Plan& plan, const PlanExchange& x, std::int32_t round,
                                                 Rank self) {
  TROUPE_ASSIGN(const auto groups, gather_groups(plan, x, round, self));
  std::vector<BoxingPlan> out;
  for (std::size_t m = 0; m < groups.size(); ++m) {
    auto boxing = plan_boxing(groups[m], self);
    if (!boxing.ok())
      return boxing.status().in("exchange '" + x.name + "', tensor '" + plan.tensors[x.moves[m].from].name + "'");
    out.push_back(*std::move(boxing));
  }
  return out;
}

}  // namespace troupe::runtime
