// StatePlaces: where a place keeps each parameter and its moments, in the slots of its parameter channels.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/place/local_plan.h"
#include "runtime/place/state_part.h"

namespace troupe::runtime {

/// A parameter at one place. Bytes count from the beginning of a slot of its channel.
struct StatePlace {
  std::int32_t channel = -1;  ///< index into LocalPlan::channels; -1: the place has no part of it
  std::int64_t param = -1;
  std::int64_t moments = -1;  ///< of its first moment, the second follows; -1: none
};

/// By index of Plan::params.
std::vector<StatePlace> state_places(const Plan& plan, const LocalPlan& local);

/// By index of Plan::params: whether AdamW makes it, so that it has moments.
std::vector<bool> trained_params(const Plan& plan);

/// The tensor (index into Plan::tensors) whose layout a part of a parameter's state has.
std::int32_t tensor_of(const PlanParam& param, StatePart part);
/// Bytes of an element.
std::int64_t item_bytes(const Plan& plan, const PlanParam& param, StatePart part);
/// What `rank` has of it; empty: nothing.
Extent extent_of(const Plan& plan, const PlanParam& param, StatePart part, Rank rank);
/// The offset of a part whose extent has `elements`, from the beginning of a slot; -1: it is not there.
std::int64_t offset_of(const StatePlace& place, StatePart part, std::int64_t elements);

}  // namespace troupe::runtime
