// The fixed binary tree along which partial sums combine, and the lanes of a step that are its leaves.
//
// A sum in floating point depends on its order. Troupe's order is a constant of the job: `leaves`
// leaves, node [lo, hi) with children split at the largest power of two below its size. Whoever owns
// which leaves, the additions are the same (NU-2). EasyScale (SC'23) fixes the number of logical
// workers in the same spirit.
//
//   TR-1  combining the nodes of any cover of the leaves gives bitwise the same as one owner of all;
//   TR-2  an owner that finishes L contiguous leaves in order holds at most log2(L) + 2 sums at any time if
//         it starts at leaf 0 or at a multiple of a power of two >= L, and at most 2 log2(L) + 2 wherever it
//         starts (an unaligned share climbs one side of the tree and descends another). One that takes turns
//         between W runs of leaves holds at most that for each run.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "placement/layout.h"

namespace troupe {

/// The two children of a node of more than one leaf.
std::pair<Term, Term> tree_children(Term node);

/// True when `node` is a node of the tree over `leaves` leaves.
bool is_tree_node(Term node, std::int32_t leaves);

/// The fewest tree nodes that cover [lo, hi), in order. Empty for an empty range.
std::vector<Term> tree_cover(Term range, std::int32_t leaves);

/// What one microbatch (in fold_schedule one leaf) means for a sum over lanes: which copy it goes to, and what is
/// complete after it.
struct LaneAct {
  std::int32_t copy = 0;               ///< which copy is written
  bool accumulate = false;             ///< not the first of its lane: added to what the copy holds
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;   ///< then, in order: copy `first` += copy `second`
};
struct LaneSchedule {
  std::vector<LaneAct> acts;           ///< one per microbatch
  std::int32_t copies = 0;             ///< that ever exist at once
  std::vector<std::pair<Term, std::int32_t>> held;   ///< at the end: tree nodes by `lo`, the fewest, and their copies
};
/// The sums of an owner that runs `microbatches` of `total` in this order; inside a lane it must be ascending.
/// A lane's copy is the lowest that is free; of two siblings the higher copy is added into the lower.
LaneSchedule lane_schedule(const std::vector<std::int32_t>& microbatches, std::int32_t lanes, std::int64_t total);

/// The sums of one that is brought the leaves in ascending order, each complete: a right child is added to its sibling
/// at once, so log2(leaves) copies do, rounded up, at least one. At the end copy 0 holds the root.
LaneSchedule fold_schedule(std::int32_t leaves);

/// The lanes of dp coordinate `index` of `dp`: contiguous, the first (lanes mod dp) get one more.
Term lanes_of(std::int64_t dp, std::int64_t index, std::int32_t lanes);
/// The microbatches of lane `lane`: contiguous, the first (microbatches mod lanes) lanes get one more.
Range microbatches_of(std::int32_t lane, std::int32_t lanes, std::int64_t microbatches);
/// The lane of a microbatch.
std::int32_t lane_of(std::int64_t microbatch, std::int32_t lanes, std::int64_t microbatches);
/// The dp coordinate that owns a lane.
std::int64_t owner_of(std::int32_t lane, std::int64_t dp, std::int32_t lanes);

}  // namespace troupe
