// What moves in a round (MicrobatchOwners) of a gather (ZeRO 3): each dp coordinate that runs a microbatch gets the
// parameters of a unit whole, from the shares of all.
#pragma once

#include "placement/boxing.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// The places that exchange in act `round` of a gather, one group per move. A group lists, by dp coordinate, the places
/// that have a share and those that get the parameter whole; all have the model coordinates of `self`. Error: the
/// meshes of the shares and of the parameters differ in a model axis, or `self` is not on the mesh of the shares.
Expected<std::vector<BoxingGroup>> gather_groups(const Plan& plan, const PlanExchange& exchange, std::int32_t round,
                                                 Rank self);

/// The transfers of these groups that `self` sends, receives or keeps, one boxing per move, in an order on which all
/// places agree: both ends number the parts of a message by it. Error, besides: an extent of `self` that no place has,
/// by name.
Expected<std::vector<BoxingPlan>> gather_boxings(const Plan& plan, const PlanExchange& exchange, std::int32_t round,
                                                 Rank self);

}  // namespace troupe::runtime
