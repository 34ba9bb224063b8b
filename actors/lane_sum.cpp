#include "actors/lane_sum.h"

#include <algorithm>
#include <cstring>

#include "kernels/vector.h"

namespace troupe::actors {

Status LaneSumBody::run(const ActContext& c, Parallel& par) {
  const auto lanes = static_cast<std::int32_t>(spec_.schedule.acts.size());
  const std::int32_t first = c.local * spec_.lanes_of_round, last = std::min(lanes, first + spec_.lanes_of_round);
  const std::byte* parts = spec_.parts.at(c.act.in[0].token.slot);
  std::byte* sums = spec_.sums.at(c.act.out[0].slot);
  auto copy = [&](std::int32_t i) { return reinterpret_cast<float*>(sums + i * spec_.bytes); };
  for (auto lane = first; lane < last; ++lane) {
    const LaneAct& act = spec_.schedule.acts[static_cast<std::size_t>(lane)];
    const auto* part = reinterpret_cast<const float*>(parts + (lane - first) * spec_.bytes);
    if (act.accumulate) kernels::add_into(copy(act.copy), part, spec_.bytes / 4, par);
    else std::memcpy(copy(act.copy), part, static_cast<std::size_t>(spec_.bytes));
    for (const auto& [into, from] : act.merges) kernels::add_into(copy(into), copy(from), spec_.bytes / 4, par);
  }
  return {};
}

}  // namespace troupe::actors
