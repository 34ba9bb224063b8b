#include "runtime/verify.h"

#include <algorithm>
#include <set>

#include "runtime/token_game.h"

namespace troupe::runtime {

namespace {

/// "12 MiB": whole units, never fewer than are needed and never more than are there.
std::string in_units(std::int64_t bytes, bool up) {
  const int shift = bytes >= (1 << 20) ? 20 : 10;
  return std::to_string((bytes + (up ? (std::int64_t{1} << shift) - 1 : 0)) >> shift) + (shift == 20 ? " MiB" : " KiB");
}

}  // namespace

Status verify(const Plan& plan, std::int64_t memory_bytes_max) {
  auto result = play(plan);
  if (!result.ok()) return result.status();
  if (memory_bytes_max <= 0) return {};
  // Every dp coordinate counts, played or not: an unaligned share of the lanes holds more gradient copies.
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    std::set<std::int64_t> seen;
    for (Rank rank : plan.meshes[s].ranks) {
      if (!seen.insert(plan.dp_index(rank)).second) continue;
      TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, rank));
      if (local.memory.total() > memory_bytes_max)
        return Status(Code::exhausted, "the plan needs " + in_units(local.memory.total(), true) + " on rank " + std::to_string(rank) +
                                           " and there are " + in_units(memory_bytes_max, false) +
                                           ": use a smaller microbatch, more stages (pp) or fewer lanes");
    }
  }
  return {};
}

}  // namespace troupe::runtime
