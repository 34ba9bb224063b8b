// The sum over the lanes of a step, of a place's share of some gradients (ZeRO 2): every act brings the parts of one
// round of lanes, which are added along the fixed tree of placement/tree.h. So the additions are those of one worker
// alone, whoever made the lanes (NU-2), and no more than log2(lanes) copies of the share are ever held.
#pragma once

#include "actors/act.h"
#include "placement/tree.h"

namespace troupe::actors {

struct LaneSumSpec {
  LaneSchedule schedule;                ///< fold_schedule() of the lanes of a step
  std::int32_t lanes_of_round = 1;      ///< fewer in the last, where they do not divide evenly
  std::int64_t bytes = 0;               ///< of one lane's parts, and of one copy of the sum
  PortMemory parts, sums;
};

class LaneSumBody final : public Body {
 public:
  explicit LaneSumBody(LaneSumSpec spec) : spec_(std::move(spec)) {}
  Status run(const ActContext& context, Parallel& parallel) override;

 private:
  LaneSumSpec spec_;
};

}  // namespace troupe::actors
