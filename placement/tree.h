// The fixed binary tree along which floating-point terms combine: rows of a norm, partial sums of a model axis.
//
// A floating-point sum depends on the order of its additions. Here that order is a constant of the tensor: a node of
// the tree over `leaves` leaves is split at the largest power of two below its size (as in the Merkle trees of RFC
// 6962). Whichever place holds which leaves, the additions are the same.
//
//   RT-1  (covers) adding the sums of any cover of the leaves by tree nodes gives bitwise what one holder of all leaves
//         computes.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "placement/layout.h"

namespace troupe {

/// The two children of a node. REQUIRES more than one leaf.
std::pair<Term, Term> tree_children(Term node);

/// True when `node` is a node of the tree over `leaves` leaves.
bool is_tree_node(Term node, std::int32_t leaves);

/// The fewest tree nodes that together are the leaves [range.lo, range.hi), in order. Empty for an empty range.
std::vector<Term> tree_cover(Term range, std::int32_t leaves);

/// Adds values of leaves along the tree over them. 0 for none. A node's leaves add up to the same bits by themselves as
/// within a larger tree: how a node is split depends on its size only.
double tree_sum(std::span<const double> leaves);

/// The additions, in their order, that lead from the values of a cover's nodes to the sum of all leaves (RT-1). Made
/// once for values that come again and again.
class TreeSum {
 public:
  /// Of nodes that are in order and cover `leaves` leaves. Error: they do not.
  static Expected<TreeSum> over(std::span<const Term> nodes, std::int32_t leaves);
  /// REQUIRES nodes() values, in the order of the nodes.
  double operator()(const double* values) const;
  std::size_t nodes() const { return additions_.size(); }
  bool operator==(const TreeSum&) const = default;

 private:
  bool add(Term node, std::span<const Term> nodes);
  std::vector<std::uint8_t> additions_;  // by node: how many sums its value ends
};

}  // namespace troupe
