// The fixed binary tree along which floating-point terms combine: rows of a norm, partial sums of a model axis.
//
// A sum in floating point depends on its order. The order of these is a constant of the tensor: node [lo, hi) of the tree
// over `leaves` leaves has children split at the largest power of two below its size. Whichever place has which leaves, the
// additions are the same.
//
//   RT-1  combining the nodes of any cover of the leaves gives bitwise the same as one owner of all.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "placement/layout.h"

namespace troupe {

/// The two children of a node of more than one leaf.
std::pair<Term, Term> tree_children(Term node);

/// True when `node` is a node of the tree over `leaves` leaves.
bool is_tree_node(Term node, std::int32_t leaves);

/// The fewest tree nodes that cover [lo, hi), in order. Empty for an empty range.
std::vector<Term> tree_cover(Term range, std::int32_t leaves);

}  // namespace troupe
