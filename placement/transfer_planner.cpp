#include "placement/transfer_planner.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <tuple>

#include "devices/base/check.h"
#include "placement/tree.h"

namespace troupe {

namespace {

bool less(const Extent& a, const Extent& b) {
  return std::lexicographical_compare(a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(),
                                      [](Range x, Range y) { return std::tie(x.lo, x.hi) < std::tie(y.lo, y.hi); });
}

std::string text(Term t) { return "term " + std::to_string(t.lo) + ":" + std::to_string(t.hi); }

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

}  // namespace

bool in_order(const Transfer& a, const Transfer& b) {
  if (a.to != b.to) return a.to < b.to;
  if (!(a.extent == b.extent)) return less(a.extent, b.extent);
  return std::tie(a.term.lo, a.term.hi, a.from) < std::tie(b.term.lo, b.term.hi, b.from);
}

Status TransferPlanner::add(const Holding& to, Term needed) {
  to_ = &to;
  pieces_.clear();
  const auto sources = from_.holdings_intersecting(to.extent);
  for (const auto& s : sources)
    if (s.extent.dims.size() != to.extent.dims.size() || !is_tree_node(s.term, terms_))
      return invalid("holding " + to_string(s) + " does not fit a tensor of " + std::to_string(to.extent.dims.size()) +
                     " dims and " + std::to_string(terms_) + " terms: its term must be a node of the reduction tree");
  // What the destination itself holds with all needed terms goes first, in pieces as large as they come (BX-2 local
  // copies).
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

std::vector<Transfer> TransferPlanner::take() {
  std::sort(transfers_.begin(), transfers_.end(), in_order);
  return std::move(transfers_);
}

Status TransferPlanner::refine(const Extent& region, std::vector<const Holding*> sources, Term needed) {
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

Status TransferPlanner::cover(const Extent& region, const std::vector<const Holding*>& sources, Term needed) {
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
      const bool mine_below = !leaf && std::any_of(mine.begin(), mine.end(),
                                                   [&](Term t) { return !(t == node) && inside(t, node); });
      const bool whole = std::find(mine.begin(), mine.end(), node) != mine.end();
      const auto split = leaf ? std::pair<Term, Term>() : tree_children(node);
      if (whole || !mine_below || !coverable(split.first) || !coverable(split.second)) {
        emit(whole ? own(found->second) : least_loaded(found->second), region);
        return {};
      }
    } else if (leaf) {
      return {Code::not_found, "no place holds " + to_string(region) +
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

const Holding& TransferPlanner::own(const std::vector<const Holding*>& holdings) const {
  for (const auto* h : holdings)
    if (h->holder == to_->holder) return *h;
  ASSERT(false, to_->holder);
  return *holdings[0];
}

const Holding& TransferPlanner::least_loaded(const std::vector<const Holding*>& holdings) const {
  auto key = [&](const Holding* h) {
    const auto it = sent_.find(h->holder);
    return std::make_tuple(it == sent_.end() ? 0 : it->second, std::abs(h->holder - to_->holder), h->holder);
  };
  return **std::min_element(holdings.begin(), holdings.end(),
                            [&](const Holding* a, const Holding* b) { return key(a) < key(b); });
}

void TransferPlanner::emit(const Holding& source, const Extent& extent) {
  pieces_.push_back({{source.holder, to_->holder, extent, source.term}, &source});
  if (source.holder != to_->holder) sent_[source.holder] += extent.elements();
}

void TransferPlanner::merge() {
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
      else merged.push_back(std::move(p));
    }
    pieces_ = std::move(merged);
  }
}

}  // namespace troupe
