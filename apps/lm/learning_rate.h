// The learning rate of a step: a pure function of the step, so that resuming needs no state.
#pragma once

#include <cstdint>

#include "apps/options/config.h"

namespace troupe::lm {

/// Linear warm-up over `warmup` steps, then half a cosine from lr down to min_lr at `steps`, then min_lr.
/// Step 0 is the first one and already has a rate above 0; step `warmup` has exactly lr.
double lr_at(const ScheduleConfig& schedule, std::int64_t step);

}  // namespace troupe::lm
