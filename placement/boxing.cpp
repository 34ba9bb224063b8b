#include "placement/boxing.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <tuple>

#include "devices/base/check.h"
#include "placement/tree.h"

namespace troupe {
namespace {

bool less(const Extent& a, const Extent& b) {
  return std::lexicographical_compare(a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(),
                                      [](Range x, Range y) { return std::tie(x.lo, x.hi) < std::tie(y.lo, y.hi); });
}

/// The order of a plan.
bool in_order(const Transfer& a, const Transfer& b) {
  if (a.to != b.to) return a.to < b.to;
  if (!(a.extent == b.extent)) return less(a.extent, b.extent);
  return std::tie(a.term.lo, a.term.hi, a.from) < std::tie(b.term.lo, b.term.hi, b.from);
}

std::string text(Term t) { return "term " + std::to_string(t.lo) + ":" + std::to_string(t.hi); }

bool inside(Term part, Term whole) { return part.lo >= whole.lo && part.hi <= whole.hi; }

/// The rectangles of `region` outside `hole`, which lies in it: slabs before and after, dim by dim.
/// Cutting dim 0 first keeps the tiles of a regular grid whole.
void subtract(Extent region, const Extent& hole, std::vector<Extent>& out) {
  for (std::size_t d = 0; d < region.dims.size(); ++d) {
    Range& r = region.dims[d];
    const Range all = r, kept = hole.dims[d];
    for (const Range slab : {Range{all.lo, kept.lo}, Range{kept.hi, all.hi}})
      if (slab.size() > 0) {
        r = slab;
        out.push_back(region);
      }
    r = kept;
  }
}

/// Makes the transfers of one boxing, destination by destination.
class Planner {
 public:
  explicit Planner(const HoldingSet& from) : from_(from), terms_(from.terms()) {}

  /// Adds what `to` lacks of the leaves [needed.lo, needed.hi).
  Status add(const Holding& to, Term needed) {
    to_ = &to;
    pieces_.clear();
    const auto sources = from_.holdings_intersecting(to.extent);
    for (const auto& s : sources)
      if (s.extent.dims.size() != to.extent.dims.size() || !is_tree_node(s.term, terms_))
        return invalid("holding " + to_string(s) + " does not fit a tensor of " + std::to_string(to.extent.dims.size()) +
                       " dims and " + std::to_string(terms_) + " terms: its term must be a node of the reduction tree");
    // What the destination itself holds with all needed terms goes first, in pieces as large as they come (BX-2).
    std::vector<Extent> regions = {to.extent};
    for (const auto& s : sources) {
      if (s.holder != to.holder || !(s.term == needed)) continue;
      std::vector<Extent> left;
      for (const auto& region : regions) {
        const Extent part = intersect(region, s.extent);
        if (part.empty()) {
          left.push_back(region);
          continue;
        }
        emit(s, part);
        subtract(region, part, left);
      }
      regions = std::move(left);
    }
    for (const auto& region : regions) {
      std::vector<const Holding*> near;
      for (const auto& s : sources)
        if (!intersect(s.extent, region).empty()) near.push_back(&s);
      TROUPE_TRY(refine(region, std::move(near), needed));
    }
    merge();
    for (auto& piece : pieces_) transfers_.push_back(std::move(piece.transfer));
    return {};
  }

  std::vector<Transfer> take() {
    std::sort(transfers_.begin(), transfers_.end(), in_order);
    return std::move(transfers_);
  }

 private:
  /// Halves `region` at the boundaries of sources until every source that touches it has all of it.
  Status refine(const Extent& region, std::vector<const Holding*> sources, Term needed) {
    std::vector<std::int64_t> cuts;
    for (std::size_t d = 0; d < region.dims.size() && cuts.empty(); ++d) {
      const Range r = region.dims[d];
      for (const auto* s : sources)
        for (const std::int64_t at : {s->extent.dims[d].lo, s->extent.dims[d].hi})
          if (at > r.lo && at < r.hi) cuts.push_back(at);
      if (cuts.empty()) continue;
      std::nth_element(cuts.begin(), cuts.begin() + cuts.size() / 2, cuts.end());
      const std::int64_t middle = cuts[cuts.size() / 2];
      for (const Range half : {Range{r.lo, middle}, Range{middle, r.hi}}) {
        Extent part = region;
        part.dims[d] = half;
        std::vector<const Holding*> near;
        for (const auto* s : sources)
          if (intersect(s->extent.dims[d], half).size() > 0) near.push_back(s);
        TROUPE_TRY(refine(part, std::move(near), needed));
      }
    }
    return cuts.empty() ? cover(region, sources, needed) : Status();
  }

  /// All of `sources` hold all of `region`: covers the leaves of `needed` with their terms.
  Status cover(const Extent& region, const std::vector<const Holding*>& sources, Term needed) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const Holding*>> holders;  // of each tree node
    for (const auto* s : sources) holders[{s->term.lo, s->term.hi}].push_back(s);
    std::vector<Term> mine;  // nodes that the destination holds
    for (const auto* s : sources)
      if (s->holder == to_->holder) mine.push_back(s->term);

    std::function<bool(Term)> coverable = [&](Term node) {
      if (holders.count({node.lo, node.hi})) return true;
      if (node.hi - node.lo == 1) return false;
      const auto [left, right] = tree_children(node);
      return coverable(left) && coverable(right);
    };
    std::function<Status(Term)> take = [&](Term node) -> Status {
      const auto found = holders.find({node.lo, node.hi});
      const bool leaf = node.hi - node.lo == 1;
      if (found != holders.end()) {
        // A sum that another rank has made saves messages, but not where it contains terms that the destination has.
        const bool mine_below =
            !leaf && std::any_of(mine.begin(), mine.end(), [&](Term t) { return !(t == node) && inside(t, node); });
        const bool whole = std::find(mine.begin(), mine.end(), node) != mine.end();
        const auto split = leaf ? std::pair<Term, Term>() : tree_children(node);
        if (whole || !mine_below || !coverable(split.first) || !coverable(split.second)) {
          emit(whole ? own(found->second) : least_loaded(found->second), region);
          return {};
        }
      } else if (leaf) {
        return {Code::not_found, "nobody holds " + to_string(region) +
                                     (terms_ > 1 ? ", " + text(node) + " of " + std::to_string(terms_) : "") +
                                     ", which rank " + std::to_string(to_->holder) + " needs"};
      }
      const auto [left, right] = tree_children(node);
      TROUPE_TRY(take(left));
      return take(right);
    };
    for (const Term node : tree_cover(needed, terms_)) TROUPE_TRY(take(node));
    return {};
  }

  const Holding& own(const std::vector<const Holding*>& holdings) const {
    for (const auto* h : holdings)
      if (h->holder == to_->holder) return *h;
    ASSERT(false, to_->holder);
    return *holdings[0];
  }

  /// BX-4: the holder that has the fewest elements to send so far in this plan, then the nearest rank, then the lower.
  const Holding& least_loaded(const std::vector<const Holding*>& holdings) const {
    auto key = [&](const Holding* h) {
      const auto it = sent_.find(h->holder);
      return std::make_tuple(it == sent_.end() ? 0 : it->second, std::abs(h->holder - to_->holder), h->holder);
    };
    return **std::min_element(holdings.begin(), holdings.end(),
                              [&](const Holding* a, const Holding* b) { return key(a) < key(b); });
  }

  void emit(const Holding& source, const Extent& extent) {
    pieces_.push_back({{source.holder, to_->holder, extent, source.term}, &source});
    if (source.holder != to_->holder) sent_[source.holder] += extent.elements();
  }

  /// Joins neighbouring pieces from one holding, which boundaries of other holdings had cut apart.
  void merge() {
    for (std::size_t d = to_->extent.dims.size(); d-- > 0 && pieces_.size() > 1;) {
      auto others = [d](const Piece& p) {
        Extent e = p.transfer.extent;
        e.dims[d] = {};
        return e;
      };
      std::sort(pieces_.begin(), pieces_.end(), [&](const Piece& a, const Piece& b) {
        if (a.source != b.source) return a.source < b.source;
        const Extent x = others(a), y = others(b);
        return x == y ? a.transfer.extent.dims[d].lo < b.transfer.extent.dims[d].lo : less(x, y);
      });
      std::vector<Piece> merged;
      for (auto& p : pieces_) {
        Range* before = merged.empty() ? nullptr : &merged.back().transfer.extent.dims[d];
        const Range here = p.transfer.extent.dims[d];
        if (before && merged.back().source == p.source && before->hi == here.lo && others(merged.back()) == others(p))
          before->hi = here.hi;
        else
          merged.push_back(std::move(p));
      }
      pieces_ = std::move(merged);
    }
  }

  struct Piece {
    Transfer transfer;
    const Holding* source;   ///< an element of add()'s `sources`: pointers compare as their positions
  };

  const HoldingSet& from_;
  const std::int32_t terms_;
  const Holding* to_ = nullptr;
  std::vector<Piece> pieces_;               ///< of the destination that add() works on
  std::vector<Transfer> transfers_;
  std::map<Rank, std::int64_t> sent_;  ///< elements to other places
};

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
  if (terms == 1) return Term{0, to.term.lo > 0 ? 0 : 1};  // B -> P: term 0 carries the value, the others are zeros
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
std::vector<std::int64_t> everywhere(const Mesh& mesh) { return mesh.group(0, std::vector<bool>(mesh.axes.size(), true)); }

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
  Planner planner(from);
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
    auto part = whole ? plan_boxing(from, g.to, g.to_terms) : plan_boxing(HoldingList(g.from, g.terms), g.to, g.to_terms);
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
  std::copy_if(group.from.begin(), group.from.end(), std::back_inserter(own), [&](const Holding& h) { return h.holder == rank; });
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
    if (to.holder == rank && lacks != 0)   // its error names what is missing or does not fit
      TROUPE_TRY(plan_boxing(HoldingList(group.from, group.terms), {to}, group.to_terms).status());
  }
  std::sort(plan.transfers.begin(), plan.transfers.end(), in_order);
  return plan;
}

}  // namespace troupe
