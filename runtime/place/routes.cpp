// The routes of a place's exchanges: which extents each act sends, receives, adds.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "devices/base/check.h"
#include "placement/boxing.h"
#include "runtime/place/gather_boxing.h"
#include "runtime/place/passes.h"

namespace troupe::runtime {

namespace {

/// The places of `mesh` that have the coordinates of `place` in `of` on all axes except the `free` ones. REQUIRES: the
/// meshes differ in the width of dp only, as those of a parameter's stages do.
std::vector<std::int64_t> along(std::vector<bool> free, const Mesh& mesh, const Mesh& of, Rank place) {
  auto coord = of.coord(std::max<std::int64_t>(0, of.find(place)));
  for (std::size_t a = 0; a < free.size(); ++a)
    if (free[a]) coord[a] = 0;
  return mesh.group(mesh.position(coord), free);
}

}  // namespace

Status LocalRoutes::run() {
  for (auto& a : local_.actors)
    if (plan_actor(a).kind == PlanActor::Kind::exchange || plan_actor(a).gathers()) TROUPE_TRY(make_routes(a));
  return {};
}

LocalRoutes::Position LocalRoutes::find(const std::vector<std::int32_t>& channels, std::int32_t tensor) const {
  for (std::size_t p = 0; p < channels.size(); ++p) {
    const auto& tensors = role_->channels[channels[p]].tensors;
    const auto it = std::find(tensors.begin(), tensors.end(), tensor);
    if (it != tensors.end()) return {static_cast<std::int32_t>(p), static_cast<std::int32_t>(it - tensors.begin())};
  }
  return {};
}

Status LocalRoutes::make_routes(LocalActor& l) {
  const PlanActor& a = plan_actor(l);
  const PlanExchange& x = plan_.exchanges[a.exchange];
  const std::int32_t from_mesh = plan_.tensors[x.moves[0].from].mesh, to_mesh = plan_.tensors[x.moves[0].to].mesh;
  l.acts_per_run = plan_.owners_of(x).acts_of_job(x.rate);
  if (a.rate == Rate::round) return make_round_routes(l, a, x);
  if (a.rate == Rate::step) {
    l.route_of = {0};
    return plan_.reduces(x) ? add_reduction(l, a, x, {}) : add_route(l, a, x, 0, 0);
  }
  // One route per dp coordinate at the other end.
  std::map<std::int64_t, std::int32_t> routes;
  const bool source = plan_.meshes[from_mesh].find(rank_) >= 0, target = plan_.meshes[to_mesh].find(rank_) >= 0;
  for (auto m : plan_.owners_of(a.program, local_.stage).microbatches(local_.dp_index)) {
    const auto owner_on = [&](std::int32_t mesh) {
      return plan_.owners_of(a.program, plan_.stages_on(mesh).front()).owner(m);
    };
    const auto from = source ? local_.dp_index : owner_on(from_mesh);
    const auto to = target ? local_.dp_index : owner_on(to_mesh);
    auto [it, fresh] = routes.try_emplace(source ? to : from, static_cast<std::int32_t>(l.routes.size()));
    if (fresh) TROUPE_TRY(add_route(l, a, x, from, to));
    l.route_of.push_back(it->second);
  }
  return {};
}

void LocalRoutes::tell_the_empty(const PlanExchange& x, std::int64_t from_dp, std::int64_t to_dp,
                                 std::vector<BoxingPlan>& boxings) const {
  // no place only receives
  if (plan_.tensors[x.moves[0].from].mesh == plan_.tensors[x.moves[0].to].mesh) return;
  std::vector<std::pair<Layout, Layout>> moves;
  for (const auto& m : x.moves) moves.emplace_back(plan_.layout(m.from, from_dp), plan_.layout(m.to, to_dp));
  const auto& [from, to] = moves[0];
  auto gets = [&](std::int64_t p) {
    return std::any_of(moves.begin(), moves.end(), [&](const auto& m) {
      const Holding h = m.second.holding_at(p);
      const bool zeros = m.first.terms() == 1 && h.term.lo > 0;
      return !h.extent.empty() && !zeros;
    });
  };
  const Rank teller = from.mesh.ranks[0];
  for (const auto p : to.mesh.group(0, std::vector<bool>(to.mesh.axes.size(), true))) {
    const Rank rank = to.mesh.ranks[p];
    if ((rank != rank_ && teller != rank_) || from.mesh.find(rank) >= 0 || gets(p)) continue;
    Extent none = to.extent_at(p);
    if (!none.dims.empty()) none.dims[0].hi = none.dims[0].lo;
    boxings[0].transfers.push_back({teller, rank, std::move(none), from.holding_at(0).term});
  }
}

Expected<BoxingPlan> LocalRoutes::own_boxing(Layout from, const Layout& to) const {
  from.dtype = to.dtype;  // the exchange converts
  TROUPE_ASSIGN(const BoxingGroup group, boxing_group(from, to, rank_));
  return plan_boxing(group, rank_);
}

void LocalRoutes::find_exponent(const PlanActor& a, std::int32_t gradient_of, comm::MoveEnds& ends) const {
  const Exponent at = exponent_of(plan_, *role_, a, gradient_of);
  ends.exponent_port = at.port;
  ends.exponent_offset = at.offset;
}

Status LocalRoutes::add_reduction(LocalActor& l, const PlanActor& a, const PlanExchange& x,
                                  const std::function<bool(std::int64_t)>& takes_part) {
  comm::Route route;
  comm::PartNumbers numbers;
  for (const auto& move : x.moves) {
    const PlanTensor& from = plan_.tensors[move.from];
    const BoxingGroup group = reduction_group(plan_, move.from, move.to, rank_, takes_part);
    auto boxing = plan_boxing(group, rank_);
    if (!boxing.ok()) return boxing.status().in("exchange '" + x.name + "', tensor '" + from.name + "'");
    comm::MoveEnds ends;
    const auto mine = std::find_if(group.from.begin(), group.from.end(),
                                   [&](const Holding& h) { return h.holder == rank_; });
    if (const Position at = find(a.in, move.from); at.port >= 0 && mine != group.from.end()) {
      ends.port = at.port;
      ends.have.push_back({mine->extent, mine->term, role_->channels[a.in[at.port]].offsets[at.index]});
    }
    Extent want;
    if (const Position at = find(a.out, move.to); at.port >= 0) {
      want = plan_.extent(move.to, rank_);
      ends.want = &want;
      ends.want_offset = role_->channels[a.out[at.port]].offsets[at.index];
    }
    if (from.dtype != DType::sum64) find_exponent(a, from.gradient_of, ends);
    comm::add_move(route, rank_, *boxing, from.dtype, plan_.tensors[move.to].dtype, std::move(ends), numbers);
  }
  keep_route(l, a, std::move(route));
  return {};
}

Status LocalRoutes::add_route(LocalActor& l, const PlanActor& a, const PlanExchange& x, std::int64_t from_dp,
                              std::int64_t to_dp) {
  comm::Route route;
  comm::PartNumbers numbers;
  std::vector<BoxingPlan> boxings;
  for (const auto& move : x.moves) {
    auto boxing = own_boxing(plan_.layout(move.from, from_dp), plan_.layout(move.to, to_dp));
    if (!boxing.ok())
      return boxing.status().in("exchange '" + x.name + "', tensor '" + plan_.tensors[move.from].name + "'");
    boxings.push_back(*std::move(boxing));
  }
  tell_the_empty(x, from_dp, to_dp, boxings);
  for (std::size_t i = 0; i < x.moves.size(); ++i) {
    const auto& move = x.moves[i];
    const PlanTensor &ft = plan_.tensors[move.from], &tt = plan_.tensors[move.to];
    const Layout from = plan_.layout(move.from, from_dp), to = plan_.layout(move.to, to_dp);
    comm::MoveEnds ends;
    Extent want;
    if (a.gathers()) {
      // The place's share lies in the parameter slot, where the shares of other places go.
      const Position at = find(a.out, move.to);
      ends.have.push_back({plan_.extent(move.to, rank_), {}, role_->channels[a.out[at.port]].offsets[at.index]});
    } else if (const Position at = find(a.in, move.from); at.port >= 0) {
      const PlanChannel& c = role_->channels[a.in[at.port]];
      ends.port = at.port;
      const Holding mine = from.holding_at(from.mesh.find(rank_));
      ends.have.push_back({mine.extent, mine.term, c.offsets[at.index]});
    }
    if (const Position at = find(a.out, move.to); at.port >= 0) {
      const PlanChannel& c = role_->channels[a.out[at.port]];
      want = to.extent_at(to.mesh.find(rank_));
      ends.want = &want;
      ends.want_offset = c.offsets[at.index];
    }
    if (ft.dtype != tt.dtype) find_exponent(a, ft.gradient_of, ends);
    comm::add_move(route, rank_, boxings[i], ft.dtype, tt.dtype, std::move(ends), numbers);
  }
  keep_route(l, a, std::move(route));
  return {};
}

Status LocalRoutes::make_round_routes(LocalActor& l, const PlanActor& a, const PlanExchange& x) {
  std::map<std::vector<bool>, std::int32_t> routes;
  const MicrobatchOwners owners = plan_.owners_of(x);
  for (std::int32_t round = 0, rounds = owners.rounds(); round < rounds; ++round) {
    std::vector<bool> present;
    for (std::int64_t d = 0; d < owners.width(); ++d) present.push_back(owners.runs_in_round(d, round));
    auto [it, fresh] = routes.try_emplace(present, static_cast<std::int32_t>(l.routes.size()));
    if (fresh && plan_.reduces(x))
      TROUPE_TRY(add_reduction(l, a, x, [&](std::int64_t d) { return present[static_cast<std::size_t>(d)]; }));
    if (fresh && !plan_.reduces(x)) TROUPE_TRY(add_gather(l, a, x, round));
    l.route_of.push_back(it->second);
  }
  return {};
}

Status LocalRoutes::add_gather(LocalActor& l, const PlanActor& a, const PlanExchange& x, std::int32_t round) {
  TROUPE_ASSIGN(const auto boxings, gather_boxings(plan_, x, round, rank_));
  comm::Route route;
  comm::PartNumbers numbers;
  const bool runs = owners_of(a).runs_in_round(local_.dp_index, round);
  for (std::size_t m = 0; m < x.moves.size(); ++m) {
    const auto [from, to] = x.moves[m];
    comm::MoveEnds ends;
    Extent want;
    if (const Position at = find(a.in, from); at.port >= 0) {
      ends.port = at.port;
      ends.have.push_back({plan_.extent(from, rank_), {}, role_->channels[a.in[at.port]].offsets[at.index]});
    }
    if (const Position at = find(a.out, to); at.port >= 0 && runs) {
      want = plan_.extent(to, rank_);
      ends.want = &want;
      ends.want_offset = role_->channels[a.out[at.port]].offsets[at.index];
    }
    comm::add_move(route, rank_, boxings[m], plan_.tensors[from].dtype, plan_.tensors[to].dtype, std::move(ends),
                   numbers);
  }
  keep_route(l, a, std::move(route));
  return {};
}

void LocalRoutes::keep_route(LocalActor& l, const PlanActor& a, comm::Route route) {
  std::vector<Rank> peers;
  for (const auto& m : route.moves) {
    for (const auto& p : m.sends) peers.push_back(p.transfer.to);
    for (const auto& p : m.receives) peers.push_back(p.transfer.from);
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  l.peers.push_back(std::move(peers));
  l.staging_bytes = std::max(l.staging_bytes, aligned(route.staging_bytes));
  l.staging_slots = l.staging_bytes == 0 ? 0 : a.rate == Rate::step || a.staging_ring >= 0 ? 1 : 2;
  l.routes.push_back(std::move(route));
}

BoxingGroup reduction_group(const Plan& plan, std::int32_t gradient, std::int32_t to, Rank self,
                            const std::function<bool(std::int64_t)>& takes_part) {
  const PlanTensor &grad = plan.tensors[gradient], &sum = plan.tensors[to];
  const Mesh &from_mesh = plan.meshes[grad.mesh], &to_mesh = plan.meshes[sum.mesh];
  // Of all dp coordinates, whatever the rate.
  const Layout from{grad.shape, grad.dtype, from_mesh, grad.sbp}, result{sum.shape, sum.dtype, to_mesh, sum.sbp};
  const auto dp = static_cast<std::size_t>(dp_axis(from_mesh));
  std::vector<bool> free;
  for (std::size_t a = 0; a < grad.sbp.size(); ++a)
    free.push_back(a == dp || (grad.sbp[a].is_partial() && !sum.sbp[a].is_partial()));
  // On an axis where the result stays a sum (P) and the gradient is whole, the place of coordinate 0 brings the term.
  const auto adds = [&](const std::vector<std::int64_t>& coord) {
    for (std::size_t a = 0; a < coord.size(); ++a)
      if (a != dp && sum.sbp[a].is_partial() && !grad.sbp[a].is_partial() && coord[a] != 0) return false;
    return !takes_part || takes_part(coord[dp]);
  };
  BoxingGroup group;
  group.terms = 0;
  group.replicas = false;  // each place's term is its own
  for (const auto p : along(free, from_mesh, to_mesh, self)) {
    if (!adds(from_mesh.coord(p))) continue;
    group.from.push_back({from_mesh.ranks[p], from.extent_at(p), {group.terms, group.terms + 1}});
    ++group.terms;
  }
  for (const auto p : along(free, to_mesh, to_mesh, self))
    group.to.push_back({to_mesh.ranks[p], result.extent_at(p), {}});
  return group;
}

Exponent exponent_of(const Plan& plan, const PlanRole& role, const PlanActor& a, std::int32_t param) {
  for (std::size_t port = 0; port < a.in.size(); ++port) {
    const PlanChannel& c = role.channels[a.in[port]];
    if (c.kind != PlanChannel::Kind::parameter) continue;
    const auto it = std::find(c.tensors.begin(), c.tensors.end(), plan.params[param].stored());
    if (it != c.tensors.end()) return {static_cast<std::int32_t>(port), exponent_at(c, it - c.tensors.begin())};
  }
  return {};
}

}  // namespace troupe::runtime
