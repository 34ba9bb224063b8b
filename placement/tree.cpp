#include "placement/tree.h"

#include <algorithm>

#include "devices/base/check.h"

namespace troupe {

std::pair<Term, Term> tree_children(Term node) {
  ASSERT(node.hi - node.lo > 1, node.lo, node.hi);
  std::int32_t half = 1;
  while (half * 2 < node.hi - node.lo) half *= 2;
  return {{node.lo, node.lo + half}, {node.lo + half, node.hi}};
}

bool is_tree_node(Term node, std::int32_t leaves) {
  Term at{0, leaves};
  while (!(at == node)) {
    if (at.hi - at.lo <= 1) return false;
    const auto [left, right] = tree_children(at);
    if (node.lo >= left.lo && node.hi <= left.hi) at = left;
    else if (node.lo >= right.lo && node.hi <= right.hi) at = right;
    else return false;
  }
  return true;
}

std::vector<Term> tree_cover(Term range, std::int32_t leaves) {
  std::vector<Term> out;
  std::function<void(Term)> walk = [&](Term node) {
    if (node.hi <= range.lo || node.lo >= range.hi) return;
    if (node.lo >= range.lo && node.hi <= range.hi) {
      out.push_back(node);
      return;
    }
    const auto [left, right] = tree_children(node);
    walk(left);
    walk(right);
  };
  if (range.lo < range.hi) walk({0, leaves});
  return out;
}

LanePush lane_push(Term owned, std::int32_t leaf, std::int32_t leaves) {
  ASSERT(leaf >= owned.lo && leaf < owned.hi, leaf, owned.lo, owned.hi);
  const auto before = static_cast<std::int32_t>(tree_cover({owned.lo, leaf}, leaves).size());
  const auto after = static_cast<std::int32_t>(tree_cover({owned.lo, leaf + 1}, leaves).size());
  return {before, before + 1 - after};
}

std::int32_t lane_copies(Term owned, std::int32_t leaves) {
  std::int32_t most = 0;
  for (auto leaf = owned.lo; leaf < owned.hi; ++leaf) most = std::max(most, lane_push(owned, leaf, leaves).slot + 1);
  return most;
}

Term lanes_of(std::int64_t dp, std::int64_t index, std::int32_t lanes) {
  const Range r = split_range({0, lanes}, dp, index);
  return {static_cast<std::int32_t>(r.lo), static_cast<std::int32_t>(r.hi)};
}

Range microbatches_of(std::int32_t lane, std::int32_t lanes, std::int64_t microbatches) {
  return split_range({0, microbatches}, lanes, lane);
}

std::int32_t lane_of(std::int64_t microbatch, std::int32_t lanes, std::int64_t microbatches) {
  for (std::int32_t lane = 0; lane < lanes; ++lane)
    if (microbatch < microbatches_of(lane, lanes, microbatches).hi) return lane;
  ASSERT(false, microbatch, lanes, microbatches);
  return -1;
}

std::int64_t owner_of(std::int32_t lane, std::int64_t dp, std::int32_t lanes) {
  for (std::int64_t i = 0; i < dp; ++i)
    if (lane < lanes_of(dp, i, lanes).hi) return i;
  ASSERT(false, lane, dp, lanes);
  return -1;
}

}  // namespace troupe
