// Boxing: moving a tensor from one set of holdings to another. One pure function serves the collectives
// between ops, ZeRO, and the restoring of checkpoints (docs/architecture.md: "One idea used everywhere").
//
//   BX-1  (coverage) every element of every destination extent is covered exactly once per term that the destination
//         needs;
//   BX-2  (local copies) a destination that already holds a piece copies it locally;
//   BX-3  (tree order) terms are added along the tree of tree.h, so their order never depends on the ranks that hold
//         them;
//   BX-4  (replica choice) which replica sends to which destination is a pure function of (from, to): both ends compute
//         the same plan. A piece comes from the replica that has the fewest elements to send so far (destinations in
//         the order of `to`), then from the nearest rank, then from the lower one: loads are even, and neighbours serve
//         each other where that costs nothing. Axes of one mesh on which both layouts agree divide it into groups; a
//         group's transfers stay within it;
//   BX-5  (one buffer) a transfer lies inside one holding of its source and one of its destination: one buffer each.
#pragma once

#include <string>
#include <vector>

#include "placement/layout.h"

namespace troupe {

/// One rectangle from one holder to another. `from == to` is a local copy.
struct Transfer {
  Rank from = 0, to = 0;
  Extent extent;
  Term term;  ///< which terms of a partial sum these values are
  bool operator==(const Transfer&) const = default;
};

/// The result of plan_boxing. Transfers are sorted by (to, extent, term).
struct BoxingPlan {
  std::vector<Transfer> transfers;
  std::int32_t terms = 1;     ///< leaves of the reduction tree of the source
  std::int32_t to_terms = 1;  ///< of the destination; > 1: it stays a partial sum, nothing is added

  /// Bytes between different places, for elements of `item` bytes.
  std::int64_t moved_bytes(std::int64_t item) const;
  /// Bytes that `rank` sends to, and receives from, other places.
  std::int64_t sent_bytes(Rank rank, std::int64_t item) const;
  std::int64_t received_bytes(Rank rank, std::int64_t item) const;
};

/// The transfers that give each destination its extent with all terms summed, from the holders in
/// `from`. A destination holding whose term is {t, t+1} of a `P` layout (B -> P) gets the value where
/// t is 0 and nothing (zeros) elsewhere. With `to_terms` equal to from.terms() > 1 the tensor
/// stays a partial sum: each destination gets just its own term (P -> P).
/// Sums already made (terms of several leaves) must be nodes of the tree; a destination's own pieces
/// are taken first, then the largest sums.
/// Errors: not_found, which names an extent or a term that no rank holds; invalid, for terms that do not fit.
Expected<BoxingPlan> plan_boxing(const HoldingSet& from, const std::vector<Holding>& to, std::int32_t to_terms = 1);
/// The same between layouts. Errors, besides: invalid, for an invalid layout or for two shapes or dtypes.
Expected<BoxingPlan> plan_boxing(const Layout& from, const Layout& to);

/// The places of a boxing that exchange with each other: no place outside sends to a member or receives from one.
struct BoxingGroup {
  std::vector<Holding> from, to;
  std::int32_t terms = 1, to_terms = 1;
  bool replicas = true;  ///< false: no term of an element is held twice, so no replica is chosen
};
/// The group of `rank`. On one mesh: the places that differ from `rank` only on axes which take part in the boxing, so
/// that a boxing along dp never lists the places along tp; between two meshes: all places. Error: invalid, for an
/// invalid layout or for two shapes or dtypes. REQUIRES, on one mesh, that it contains `rank`.
Expected<BoxingGroup> boxing_group(const Layout& from, const Layout& to, Rank rank);
/// The transfers of the whole plan that `rank` sends, receives or keeps, in the plan's order. Without replicas it
/// computes these transfers only; with replicas it plans the whole group (BX-4).
Expected<BoxingPlan> plan_boxing(const BoxingGroup& group, Rank rank);

}  // namespace troupe
