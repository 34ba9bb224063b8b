// What moves in a round of a gather (ZeRO 3): each dp coordinate that runs a microbatch gets the parameters of a unit
// whole, from the shares of all.
#pragma once

#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// The boxings of act `round` of a gather, one per move, as the places with the model coordinates of `self` see it; the
/// same at all of them. Error: an extent that no place has, by name.
Expected<std::vector<BoxingPlan>> gather_boxings(const Plan& plan, const PlanExchange& exchange, std::int32_t round,
                                                 Rank self);

}  // namespace troupe::runtime
