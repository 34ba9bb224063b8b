// TransferPlanner: which holder sends which rectangle and term to which destination, as transfers (BX-1..5). Internal
// to boxing.cpp.
#pragma once

#include <map>
#include <vector>

#include "placement/boxing.h"

namespace troupe {

/// The order of a plan: by destination, extent, term.
bool in_order(const Transfer& a, const Transfer& b);
inline bool inside(Term part, Term whole) { return part.lo >= whole.lo && part.hi <= whole.hi; }

/// Makes the transfers of one boxing, destination by destination.
class TransferPlanner {
 public:
  explicit TransferPlanner(const HoldingSet& from) : from_(from), terms_(from.terms()) {}

  /// Adds what `to` lacks of the leaves [needed.lo, needed.hi).
  Status add(const Holding& to, Term needed);
  /// All transfers that were added, in the order of a plan.
  std::vector<Transfer> take();

 private:
  struct Piece {
    Transfer transfer;
    const Holding* source;  ///< an element of add()'s `sources`: pointers compare as their positions
  };

  /// Halves `region` at the boundaries of sources until every source that touches it has all of it.
  Status refine(const Extent& region, std::vector<const Holding*> sources, Term needed);
  /// All of `sources` hold all of `region`: covers the leaves of `needed` with their terms.
  Status cover(const Extent& region, const std::vector<const Holding*>& sources, Term needed);
  /// The destination's own holding of `holdings`. REQUIRES that there is one.
  const Holding& own(const std::vector<const Holding*>& holdings) const;
  /// BX-4 (replica choice): the holder that has the fewest elements to send so far in this plan, then the nearest rank,
  /// then the lower.
  const Holding& least_loaded(const std::vector<const Holding*>& holdings) const;
  void emit(const Holding& source, const Extent& extent);
  /// Joins neighbouring pieces from one holding, which boundaries of other holdings had cut apart.
  void merge();

  const HoldingSet& from_;
  const std::int32_t terms_;
  const Holding* to_ = nullptr;
  std::vector<Piece> pieces_;  ///< of the destination that add() works on
  std::vector<Transfer> transfers_;
  std::map<Rank, std::int64_t> sent_;  ///< elements to other places
};

}  // namespace troupe
