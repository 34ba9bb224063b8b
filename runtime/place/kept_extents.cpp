#include "runtime/place/kept_extents.h"

#include "runtime/place/state_places.h"

namespace troupe::runtime {

KeptExtents::KeptExtents(const Plan& plan, bool guards) : plan_(plan) {
  if (plan.keeps_copies() || guards) saved_.emplace(plan);
}

Extent KeptExtents::of(Rank rank, std::int32_t param, StatePart part) const {
  if (!any(param, part)) return Extent{{{0, 0}}};
  if (!saved_) return extent_of(plan_, plan_.params[static_cast<std::size_t>(param)], part, rank);
  const auto saved = saved_->of(rank, param);
  return saved ? saved->extent : Extent{{{0, 0}}};
}

bool KeptExtents::any(std::int32_t param, StatePart part) const {
  return part == StatePart::parameter || plan_.params[static_cast<std::size_t>(param)].has_moments();
}

}  // namespace troupe::runtime
