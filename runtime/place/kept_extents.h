// KeptExtents: which part of each parameter's state each rank keeps where the end of its process does not lose it: all
// that lies in its slots, or its copies. A pure function of the plan.
#pragma once

#include <array>
#include <vector>

#include "runtime/place/saved_parts.h"
#include "runtime/place/state_part.h"

namespace troupe::runtime {

class KeptExtents {
 public:
  /// By StatePart; empty: nothing.
  using Parts = std::array<Extent, std::size(state_parts)>;

  /// REQUIRES: `plan` outlives this object.
  explicit KeptExtents(const Plan& plan);
  /// What a rank keeps, by index of Plan::params.
  std::vector<Parts> of(Rank rank) const;
  /// Whether any rank keeps a part of the state of a parameter: copies have no moments of one that is not trained.
  bool any(std::int32_t param, StatePart part) const;

 private:
  const Plan& plan_;
  const SavedParts saved_;
};

}  // namespace troupe::runtime
