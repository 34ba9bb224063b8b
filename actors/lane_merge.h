// The additions of one act of a lane schedule, in one pass over memory.
#pragma once

#include <vector>

#include "devices/base/check.h"
#include "kernels/vector.h"
#include "placement/tree.h"

namespace troupe::actors {

/// Adds up `terms` (they belong to copy act.copy), then along act.merges; the copies are at `base`, `bytes` apart.
/// Each merge must take in the sum so far. Only the copy that remains is written.
inline void merge_lanes(const LaneAct& act, std::vector<const float*> terms, std::byte* base, std::int64_t bytes, Parallel& par) {
  const auto copy = [&](std::int32_t i) { return reinterpret_cast<float*>(base + i * bytes); };
  std::int32_t sum = act.copy;
  for (const auto& [into, from] : act.merges) {
    ASSERT(into == sum || from == sum, into, from, sum);
    terms.push_back(copy(into == sum ? from : into));
    sum = into;
  }
  kernels::add_up(copy(sum), terms, bytes / 4, par);
}

}  // namespace troupe::actors
