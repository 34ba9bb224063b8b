#include "placement/boxing.h"

#include <algorithm>

#include "placement/transfer_planner.h"
#include "placement/tree.h"

namespace troupe {
namespace {

template <class F>
std::int64_t sum_elements(const BoxingPlan& plan, F&& counts) {
  std::int64_t n = 0;
  for (const auto& t : plan.transfers)
    if (t.from != t.to && counts(t)) n += t.extent.elements();
  return n;
}

}  // namespace

std::int64_t BoxingPlan::moved_bytes(std::int64_t item) const {
  return item * sum_elements(*this, [](const Transfer&) { return true; });
}

std::int64_t BoxingPlan::sent_bytes(Rank rank, std::int64_t item) const {
  return item * sum_elements(*this, [&](const Transfer& t) { return t.from == rank; });
}

std::int64_t BoxingPlan::received_bytes(Rank rank, std::int64_t item) const {
  return item * sum_elements(*this, [&](const Transfer& t) { return t.to == rank; });
}

namespace {

/// The leaves that a destination asks for; none (an empty term) where it keeps zeros.
Expected<Term> needed_by(const Holding& to, std::int32_t terms, std::int32_t to_terms) {
  // B -> P: term 0 carries the value, the other terms are zeros
  if (terms == 1) return Term{0, to.term.lo > 0 ? 0 : 1};
  if (to_terms > 1) {
    if (to.term.lo < 0 || to.term.hi > terms || to.term.lo >= to.term.hi)
      return invalid("destination " + to_string(to) + " asks for a term outside 0:" + std::to_string(terms));
    return to.term;
  }
  if (to.term.lo != 0 || (to.term.hi != 1 && to.term.hi != terms))
    return invalid("destination " + to_string(to) + " asks for a part of a sum of " + std::to_string(terms) +
                   " terms: say so with to_terms");
  return Term{0, terms};
}

Status check_terms(std::int32_t terms, std::int32_t to_terms) {
  if (to_terms <= 1 || terms <= 1 || to_terms == terms) return {};
  return invalid("a sum of " + std::to_string(terms) + " terms cannot become one of " + std::to_string(to_terms) +
                 ": sum it first (to B or S), or keep its terms");
}

Status check_layouts(const Layout& from, const Layout& to) {
  TROUPE_TRY(from.validate().in("boxing from"));
  TROUPE_TRY(to.validate().in("boxing to"));
  if (from.shape == to.shape && from.dtype == to.dtype) return {};
  return invalid("cannot box " + to_string(from) + " to " + to_string(to) + ": boxing changes neither shape nor dtype");
}

/// An axis on which both layouts agree, and whose cuts no axis before it moves: no transfer crosses it.
bool divides(const Layout& from, const Layout& to, std::size_t axis) {
  const Sbp& own = from.sbp[axis];
  if (!(own == to.sbp[axis]) || own.is_partial()) return false;
  for (std::size_t a = 0; own.is_split() && a < axis; ++a)
    if (from.mesh.axes[a].size > 1 && !(from.sbp[a] == to.sbp[a]))
      for (const Sbp& other : {from.sbp[a], to.sbp[a]})
        if (other.is_split() && other.dim == own.dim) return false;
  return true;
}

/// The axes of the source's mesh along which places take part in each other's boxing.
std::vector<bool> free_axes(const Layout& from, const Layout& to) {
  std::vector<bool> free(from.mesh.axes.size(), true);
  for (std::size_t a = 0; a < free.size() && from.mesh == to.mesh; ++a) free[a] = !divides(from, to, a);
  return free;
}

std::vector<Holding> holdings_at(const Layout& layout, const std::vector<std::int64_t>& positions) {
  std::vector<Holding> out;
  out.reserve(positions.size());
  for (const auto p : positions) out.push_back(layout.holding_at(p));
  return out;
}

/// All positions of a mesh.
std::vector<std::int64_t> everywhere(const Mesh& mesh) {
  return mesh.group(0, std::vector<bool>(mesh.axes.size(), true));
}

BoxingGroup group_of(const Layout& from, const Layout& to, const std::vector<bool>& free, std::int64_t position) {
  BoxingGroup g;
  g.terms = from.terms();
  g.to_terms = to.terms();
  const auto members = from.mesh.group(position, free);
  g.from = holdings_at(from, members);
  g.to = holdings_at(to, from.mesh == to.mesh ? members : everywhere(to.mesh));
  g.replicas = false;
  for (std::size_t a = 0; a < free.size(); ++a)
    g.replicas |= free[a] && from.mesh.axes[a].size > 1 && from.sbp[a].is_broadcast();
  return g;
}

}  // namespace

Expected<BoxingPlan> plan_boxing(const HoldingSet& from, const std::vector<Holding>& to, std::int32_t to_terms) {
  const std::int32_t terms = from.terms();
  TROUPE_TRY(check_terms(terms, to_terms));
  TransferPlanner planner(from);
  for (const auto& h : to) {
    if (h.extent.empty()) continue;
    TROUPE_ASSIGN(const Term needed, needed_by(h, terms, to_terms));
    if (needed.lo < needed.hi) TROUPE_TRY(planner.add(h, needed));
  }
  return BoxingPlan{planner.take(), terms, to_terms};
}

Expected<BoxingPlan> plan_boxing(const Layout& from, const Layout& to) {
  TROUPE_TRY(check_layouts(from, to));
  auto free = free_axes(from, to);
  const bool whole = std::find(free.begin(), free.end(), false) == free.end();
  BoxingPlan plan{{}, from.terms(), to.terms()};
  auto fixed = free;
  fixed.flip();
  for (const auto first : whole ? std::vector<std::int64_t>{0} : from.mesh.group(0, fixed)) {
    const BoxingGroup g = group_of(from, to, free, first);
    auto part = whole ? plan_boxing(from, g.to, g.to_terms)
                      : plan_boxing(HoldingList(g.from, g.terms), g.to, g.to_terms);
    if (!part.ok()) return part.status().in("cannot box " + to_string(from) + " to " + to_string(to));
    plan.transfers.insert(plan.transfers.end(), std::make_move_iterator(part->transfers.begin()),
                          std::make_move_iterator(part->transfers.end()));
  }
  if (!whole) std::sort(plan.transfers.begin(), plan.transfers.end(), in_order);
  return plan;
}

Expected<BoxingGroup> boxing_group(const Layout& from, const Layout& to, Rank rank) {
  TROUPE_TRY(check_layouts(from, to));
  const std::int64_t position = from.mesh.find(rank);
  return group_of(from, to, free_axes(from, to), std::max<std::int64_t>(0, position));
}

Expected<BoxingPlan> plan_boxing(const BoxingGroup& group, Rank rank) {
  if (group.replicas) {
    TROUPE_ASSIGN(BoxingPlan plan, plan_boxing(HoldingList(group.from, group.terms), group.to, group.to_terms));
    std::erase_if(plan.transfers, [&](const Transfer& t) { return t.from != rank && t.to != rank; });
    return plan;
  }
  TROUPE_TRY(check_terms(group.terms, group.to_terms));
  BoxingPlan plan{{}, group.terms, group.to_terms};
  std::vector<Holding> own;
  std::copy_if(group.from.begin(), group.from.end(), std::back_inserter(own),
               [&](const Holding& h) { return h.holder == rank; });
  for (const auto& to : group.to) {
    if (to.extent.empty()) continue;
    TROUPE_ASSIGN(const Term needed, needed_by(to, group.terms, group.to_terms));
    std::int64_t lacks = to.extent.elements() * (needed.hi - needed.lo);
    for (const auto& from : to.holder == rank ? group.from : own) {
      Extent part = intersect(from.extent, to.extent);
      if (part.empty() || !inside(from.term, needed)) continue;
      lacks -= part.elements() * (from.term.hi - from.term.lo);
      plan.transfers.push_back({from.holder, to.holder, std::move(part), from.term});
    }
    if (to.holder == rank && lacks != 0)  // its error names what is missing or does not fit
      TROUPE_TRY(plan_boxing(HoldingList(group.from, group.terms), {to}, group.to_terms).status());
  }
  std::sort(plan.transfers.begin(), plan.transfers.end(), in_order);
  return plan;
}

}  // namespace troupe
