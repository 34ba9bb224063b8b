// KeptExtents: which part of each parameter's state each rank keeps where the end of its process does not lose it: all
// that lies in its slots, or its copies. A pure function of the plan.
#pragma once

#include <optional>

#include "runtime/place/saved_parts.h"
#include "runtime/place/state_part.h"

namespace troupe::runtime {

class KeptExtents {
 public:
  /// `guards`: what it keeps as guards of a version (CO-8 guards). REQUIRES: `plan` outlives this object.
  explicit KeptExtents(const Plan& plan, bool guards = false);
  /// What a rank keeps of a part of a parameter's state; empty: nothing.
  Extent of(Rank rank, std::int32_t param, StatePart part) const;
  /// Whether any rank keeps some of it: there are no moments of a parameter that AdamW does not make.
  bool any(std::int32_t param, StatePart part) const;

 private:
  const Plan& plan_;
  std::optional<SavedParts> saved_;  // of a plan with copies, or of guards
};

}  // namespace troupe::runtime
