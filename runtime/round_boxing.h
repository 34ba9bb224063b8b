// What moves in a round: an act in which every dp coordinate of a stage takes part (ZeRO 2 and 3).
//
//   lane_round  each coordinate brings the gradients of one lane, and every place gets its share of each lane's, kept
//               apart: whoever adds them up does so in the order of the tree;
//   round       each coordinate that runs a microbatch gets the parameters of a unit whole, from everybody's shares.
#pragma once

#include "runtime/plan.h"

namespace troupe::runtime {

struct RoundBoxing {
  std::int32_t move = 0;               ///< index into PlanExchange::moves
  std::int32_t lane = 0;               ///< lane_round: which of the round's lanes, counted from 0
  Rank from = -1;                      ///< lane_round: whose gradient it is
  BoxingPlan plan;
};

/// The boxings of act `round` of an exchange, as the places with the model coordinates of `self` see it; the same at
/// all of them. Error: what nobody has, by name.
Expected<std::vector<RoundBoxing>> round_boxings(const Plan& plan, const PlanExchange& exchange, std::int32_t round, Rank self);

}  // namespace troupe::runtime
