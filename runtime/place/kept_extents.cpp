#include "runtime/place/kept_extents.h"

#include "runtime/place/state_places.h"

namespace troupe::runtime {

namespace {

Extent nothing() { return {{{0, 0}}}; }

}  // namespace

KeptExtents::KeptExtents(const Plan& plan) : plan_(plan), saved_(plan) {}

std::vector<KeptExtents::Parts> KeptExtents::of(Rank rank) const {
  std::vector<Parts> out(plan_.params.size(), {nothing(), nothing(), nothing()});
  if (!plan_.keeps_copies()) {
    for (std::size_t p = 0; p < out.size(); ++p)
      for (const StatePart part : state_parts)
        out[p][static_cast<std::size_t>(part)] = extent_of(plan_, plan_.params[p], part, rank);
    return out;
  }
  for (const PlanActor& a : plan_.roles[static_cast<std::size_t>(plan_.stage_of(rank))].actors) {
    if (a.kind != PlanActor::Kind::copy) continue;
    for (const SavedPart& saved : saved_.of(rank, a))
      for (const StatePart part : state_parts)
        if (any(saved.param, part))
          out[static_cast<std::size_t>(saved.param)][static_cast<std::size_t>(part)] = saved.extent;
  }
  return out;
}

bool KeptExtents::any(std::int32_t param, StatePart part) const {
  return part == StatePart::parameter || !plan_.keeps_copies() || saved_.trained(param);
}

}  // namespace troupe::runtime
