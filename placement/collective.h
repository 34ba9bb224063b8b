// The collective that a boxing amounts to (all_gather, reduce_scatter, all_reduce, ...), the bytes that it must move
// at least, and the steps that move no more.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/layout.h"

namespace troupe {

/// The collective that a boxing amounts to, where one fits: what NCCL would be asked for, what costs
/// are computed from and what `troupe plan` prints. On one mesh: one axis changes, or several in the
/// same way (all of them P -> B: one all_reduce of their product), and no later axis cuts the same dim.
enum class Collective : std::uint8_t {
  none,            ///< nothing moves
  slice,           ///< B -> S: a local copy
  all_gather,      ///< S -> B
  reduce_scatter,  ///< P -> S
  all_reduce,      ///< P -> B
  all_to_all,      ///< S(i) -> S(j)
  broadcast,       ///< one place -> several
  send_recv,       ///< disjoint places, extents to extents
  transfers,       ///< anything else: extent transfers
};
const char* to_string(Collective c);
/// REQUIRES, here and below, valid layouts of one shape and dtype.
Collective collective_of(const Layout& from, const Layout& to);

/// Bytes that plan_boxing(from, to) moves between places, computed without a plan.
std::int64_t direct_bytes(const Layout& from, const Layout& to);

/// Bytes that must cross between places, in total: over the destinations, each element that a destination needs times
/// the terms of it that the destination lacks (S -> B and P -> S on n places, N bytes in all: (n-1)N). Where
/// collective_of is all_reduce: 2(n-1)N for each group of n places, a reduce-scatter and an all-gather of (n-1)N each.
/// Destinations, and groups, are counted apart: replicas share no sums. The steps of lower_boxing move these bytes and
/// no more, except for an all_reduce of a tensor that has no dim long enough to be scattered.
std::int64_t lower_bound_bytes(const Layout& from, const Layout& to);

/// A boxing as the sequence of direct exchanges that reaches the lower bound: an all_reduce of more
/// than two places becomes P -> S(d) -> B with the first dim that is long enough; all else is one step.
/// Returns the layouts after each step (the last is `to`).
std::vector<Layout> lower_boxing(const Layout& from, const Layout& to);

}  // namespace troupe
