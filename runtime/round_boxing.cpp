#include "runtime/round_boxing.h"

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

struct Side {                          // of an exchange: the places along dp that meet in it
  const Mesh& mesh;
  std::vector<std::int64_t> positions;
  std::vector<Holding> holdings(const Layout& layout) const {
    std::vector<Holding> out;
    for (auto p : positions) out.push_back({mesh.ranks[p], layout.extent_at(p), {}});
    return out;
  }
};

Status named(const Status& s, const Plan& plan, const PlanExchange& x, std::int32_t move) {
  return s.in("exchange '" + x.name + "', tensor '" + plan.tensors[x.moves[move].from].name + "'");
}

Expected<std::vector<RoundBoxing>> lanes_to_shares(const Plan& plan, const PlanExchange& x, std::int32_t round, const Side& from,
                                                   const Side& to) {
  const auto width = static_cast<std::int32_t>(from.positions.size());
  const std::int32_t lanes = std::min(width, plan.lanes_for(0) - round * width);
  std::vector<RoundBoxing> out;
  for (std::int32_t m = 0; m < static_cast<std::int32_t>(x.moves.size()); ++m) {
    const auto have = from.holdings(plan.layout(x.moves[m].from, 0)), want = to.holdings(plan.layout(x.moves[m].to, 0));
    for (std::int32_t lane = 0; lane < lanes; ++lane) {
      auto boxing = plan_boxing(HoldingList({have[lane]}), want);
      if (!boxing.ok()) return named(boxing.status(), plan, x, m);
      out.push_back({m, lane, have[lane].holder, *std::move(boxing)});
    }
  }
  // A place that brings no lane, and whose parts are all empty, still gets a message: it is how it learns that the
  // round takes place, and of which step.
  for (const Holding& target : to.holdings(plan.layout(x.moves[0].to, 0))) {
    bool told = false;
    for (const auto& b : out) {
      told |= b.from == target.holder;
      for (const auto& t : b.plan.transfers) told |= t.to == target.holder;
    }
    if (!told) out[0].plan.transfers.push_back({out[0].from, target.holder, target.extent, {}});
  }
  return out;
}

Expected<std::vector<RoundBoxing>> shares_to_whole(const Plan& plan, const PlanExchange& x, std::int32_t round, const Side& from, Side to) {
  std::int64_t d = 0;
  std::erase_if(to.positions, [&](auto) { return !plan.runs_in_round(x.program, plan.round_stage(x), d++, round); });
  std::vector<RoundBoxing> out;
  for (std::int32_t m = 0; m < static_cast<std::int32_t>(x.moves.size()); ++m) {
    auto boxing = plan_boxing(HoldingList(from.holdings(plan.layout(x.moves[m].from, 0))), to.holdings(plan.layout(x.moves[m].to, 0)));
    if (!boxing.ok()) return named(boxing.status(), plan, x, m);
    out.push_back({m, 0, -1, *std::move(boxing)});
  }
  return out;
}

}  // namespace

Expected<std::vector<RoundBoxing>> round_boxings(const Plan& plan, const PlanExchange& x, std::int32_t round, Rank self) {
  const Mesh &from = plan.meshes[plan.tensors[x.moves[0].from].mesh], &to = plan.meshes[plan.tensors[x.moves[0].to].mesh];
  // All meshes of a plan have the same axes; the wider of the two has everybody who takes part.
  const Mesh& wide = x.rate == Rate::lane_round ? to : from;
  const auto model = model_coord(wide, wide.find(self));
  const Side source{from, along_dp(from, model)}, target{to, along_dp(to, model)};
  for (const Side& side : {source, target})
    if (static_cast<std::int64_t>(side.positions.size()) != side.mesh.axis_size("dp"))
      return invalid("exchange '" + x.name + "': meshes " + to_string(from) + " and " + to_string(to) + " do not have the same model axes");
  return x.rate == Rate::lane_round ? lanes_to_shares(plan, x, round, source, target) : shares_to_whole(plan, x, round, source, target);
}

}  // namespace troupe::runtime
