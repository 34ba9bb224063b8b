#include "placement/collective.h"

#include <algorithm>
#include <optional>

#include "placement/boxing.h"

namespace troupe {
namespace {

bool same_places(const Mesh& a, const Mesh& b) {
  if (a.ranks != b.ranks || a.axes.size() != b.axes.size()) return false;
  for (std::size_t i = 0; i < a.axes.size(); ++i)
    if (a.axes[i].size != b.axes[i].size) return false;
  return true;
}

/// True when `from` and `to` have the same holding at every position.
bool same_holdings(const Layout& from, const Layout& to) {
  if (from.mesh.ranks != to.mesh.ranks || from.terms() != to.terms()) return false;
  for (std::int64_t p = 0; p < from.mesh.size(); ++p)
    if (!(from.holding_at(p) == to.holding_at(p))) return false;
  return true;
}

/// Axes of more than one place on which two layouts of one mesh differ.
std::vector<std::size_t> changed_axes(const Layout& from, const Layout& to) {
  std::vector<std::size_t> out;
  for (std::size_t a = 0; a < from.sbp.size(); ++a)
    if (from.mesh.axes[a].size > 1 && !(from.sbp[a] == to.sbp[a])) out.push_back(a);
  return out;
}

/// Whether a later axis that keeps its SBP cuts `dim` too. Then axis `a` may not change alone: nested splits go in axis
/// order, so that other parts along `a` would give other parts along the later axis.
bool cut_again_later(const Layout& l, std::size_t a, std::int32_t dim, const std::vector<std::size_t>& changed) {
  for (std::size_t later = a + 1; later < l.sbp.size(); ++later)
    if (l.mesh.axes[later].size > 1 && l.sbp[later].is_split() && l.sbp[later].dim == dim &&
        std::find(changed.begin(), changed.end(), later) == changed.end())
      return true;
  return false;
}

Collective on_one_axis(const Sbp& from, const Sbp& to) {
  if (from.is_broadcast()) return to.is_split() ? Collective::slice : Collective::none;
  if (from.is_partial()) return to.is_split() ? Collective::reduce_scatter : Collective::all_reduce;
  if (to.is_broadcast()) return Collective::all_gather;
  return to.is_split() && to.dim != from.dim ? Collective::all_to_all : Collective::transfers;
}

Collective on_one_mesh(const Layout& from, const Layout& to) {
  if (from.terms() > 1 && to.terms() > 1) return Collective::transfers;
  const auto changed = changed_axes(from, to);
  std::optional<Collective> all;
  for (const auto a : changed) {
    for (const auto* l : {&from, &to})
      if (l->sbp[a].is_split() && cut_again_later(*l, a, l->sbp[a].dim, changed)) return Collective::transfers;
    const Collective here = on_one_axis(from.sbp[a], to.sbp[a]);
    if (all && *all != here) return Collective::transfers;
    all = here;
  }
  // Splits that move between dims along two axes at once are an all_to_all of neither axis.
  if (changed.size() > 1 && all == Collective::all_to_all) return Collective::transfers;
  return all.value_or(Collective::none);
}

}  // namespace

const char* to_string(Collective c) {
  switch (c) {
    case Collective::none: return "none";
    case Collective::slice: return "slice";
    case Collective::all_gather: return "all_gather";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_reduce: return "all_reduce";
    case Collective::all_to_all: return "all_to_all";
    case Collective::broadcast: return "broadcast";
    case Collective::send_recv: return "send_recv";
    case Collective::transfers: return "transfers";
  }
  return "?";
}

Collective collective_of(const Layout& from, const Layout& to) {
  if (same_holdings(from, to)) return Collective::none;
  if (same_places(from.mesh, to.mesh)) return on_one_mesh(from, to);
  if (from.mesh.size() == 1 && to.mesh.size() > 1) {
    bool whole = true;
    for (std::size_t a = 0; a < to.sbp.size(); ++a)
      whole = whole && (to.mesh.axes[a].size == 1 || to.sbp[a].is_broadcast());
    if (whole) return Collective::broadcast;
  }
  for (const Rank r : to.mesh.ranks)
    if (from.mesh.find(r) >= 0) return Collective::transfers;
  return Collective::send_recv;
}

std::int64_t direct_bytes(const Layout& from, const Layout& to) {
  const std::int64_t terms = from.terms();
  std::int64_t missing = 0;
  const bool keeps_terms = terms > 1 && to.terms() > 1;
  for (std::int64_t p = 0; p < to.mesh.size(); ++p) {
    const Holding h = to.holding_at(p);
    if (terms == 1 && h.term.lo > 0) continue;  // B -> P: zeros
    missing += h.extent.elements() * (keeps_terms ? 1 : terms);
    if (const auto q = from.mesh.find(h.holder); q >= 0) {
      const Holding own = from.holding_at(q);
      if (!keeps_terms || own.term == h.term) missing -= intersect(own.extent, h.extent).elements();
    }
  }
  return size_of(from.dtype) * missing;
}

std::int64_t lower_bound_bytes(const Layout& from, const Layout& to) {
  if (collective_of(from, to) != Collective::all_reduce) return direct_bytes(from, to);
  std::int64_t group = 1, elements = 0;  // places of one all-reduce; elements summed over all groups
  for (const auto a : changed_axes(from, to)) group *= from.mesh.axes[a].size;
  for (std::int64_t p = 0; p < to.mesh.size(); ++p) elements += to.extent_at(p).elements();
  return size_of(from.dtype) * 2 * (group - 1) * (elements / group);
}

std::vector<Layout> lower_boxing(const Layout& from, const Layout& to) {
  if (collective_of(from, to) != Collective::all_reduce) return {to};
  const auto changed = changed_axes(from, to);
  std::int64_t group = 1;
  for (const auto a : changed) group *= from.mesh.axes[a].size;
  if (group <= 2) return {to};  // two places: each sends the whole in one message, the least there is
  for (std::size_t d = 0; d < from.shape.size(); ++d) {
    const auto dim = static_cast<std::int32_t>(d);
    std::int64_t shortest = from.shape[d];
    for (std::int64_t p = 0; p < from.mesh.size(); ++p) shortest = std::min(shortest, from.extent_at(p).dims[d].size());
    if (shortest < group || cut_again_later(from, changed.front(), dim, changed)) continue;
    Layout middle = to;
    for (const auto a : changed) middle.sbp[a] = Sbp::S(dim);
    return {middle, to};
  }
  return {to};  // no dim is long enough to be divided: every place sums the whole
}

}  // namespace troupe
