#include "actors/lane_sum.h"

#include <algorithm>

#include "actors/lane_merge.h"

namespace troupe::actors {

Status LaneSumBody::run(const ActContext& c, Parallel& par) {
  const auto lanes = static_cast<std::int32_t>(spec_.schedule.acts.size());
  const std::int32_t first = c.local * spec_.lanes_of_round, last = std::min(lanes, first + spec_.lanes_of_round);
  const std::byte* parts = spec_.parts.at(c.act.in[0].token.slot);
  std::byte* sums = spec_.sums.at(c.act.out[0].slot);
  for (auto lane = first; lane < last; ++lane) {
    const LaneAct& act = spec_.schedule.acts[static_cast<std::size_t>(lane)];
    std::vector<const float*> terms;
    if (act.accumulate) terms.push_back(reinterpret_cast<const float*>(sums + act.copy * spec_.bytes));
    terms.push_back(reinterpret_cast<const float*>(parts + (lane - first) * spec_.bytes));
    merge_lanes(act, std::move(terms), sums, spec_.bytes, par);
  }
  return {};
}

}  // namespace troupe::actors
