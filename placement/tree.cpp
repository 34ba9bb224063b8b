#include "placement/tree.h"

#include <functional>

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

}  // namespace troupe
