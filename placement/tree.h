// The fixed binary tree along which floating-point terms combine: rows of a norm, partial sums of a model axis.
//
// A floating-point sum depends on the order of its additions. Here that order is a constant of the tensor: a node of
// the tree over `leaves` leaves is split at the largest power of two below its size (as in the Merkle trees of RFC
// 6962). Whichever place holds which leaves, the additions are the same.
//
//   RT-1  adding the sums of any cover of the leaves by tree nodes gives bitwise what one holder of all leaves
//         computes.
#pragma once

#include <cstdint>
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

}  // namespace troupe
