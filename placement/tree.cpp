#include "placement/tree.h"

#include <functional>
#include <string>

#include "devices/base/check.h"

namespace troupe {

std::pair<Term, Term> tree_children(Term node) {
  ASSERT(node.hi - node.lo > 1, node.lo, node.hi);
  const std::int32_t leaves = node.hi - node.lo;
  std::int32_t half = 1;
  while (half < leaves - half) half *= 2;  // 2 half < leaves, without an overflow
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

double tree_sum(std::span<const double> leaves) {
  if (leaves.size() < 2) return leaves.empty() ? 0 : leaves[0];
  const auto half = static_cast<std::size_t>(tree_children({0, static_cast<std::int32_t>(leaves.size())}).first.hi);
  return tree_sum(leaves.first(half)) + tree_sum(leaves.subspan(half));
}

Expected<TreeSum> TreeSum::over(std::span<const Term> nodes, std::int32_t leaves) {
  TreeSum sum;
  if ((leaves > 0 && !sum.add({0, leaves}, nodes)) || sum.nodes() != nodes.size())
    return invalid(std::to_string(nodes.size()) + " nodes do not cover the tree over " + std::to_string(leaves) +
                   " leaves");
  return sum;
}

bool TreeSum::add(Term node, std::span<const Term> nodes) {
  if (additions_.size() == nodes.size()) return false;
  if (nodes[additions_.size()] == node) {
    additions_.push_back(0);
    return true;
  }
  if (node.hi - node.lo < 2) return false;
  const auto [left, right] = tree_children(node);
  if (!add(left, nodes) || !add(right, nodes)) return false;
  ++additions_.back();
  return true;
}

double TreeSum::operator()(const double* values) const {
  double open[64];  // sums of nodes that wait for the node to their right: one for each level of the tree
  std::size_t n = 0;
  for (const std::uint8_t additions : additions_) {
    double sum = *values++;
    for (std::uint8_t i = 0; i < additions; ++i) sum = open[--n] + sum;
    open[n++] = sum;
  }
  return n == 0 ? 0 : open[0];
}

}  // namespace troupe
