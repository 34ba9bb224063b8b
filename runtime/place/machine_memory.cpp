#include "runtime/place/machine_memory.h"

#include <algorithm>
#include <optional>

#include "runtime/place/guard_layout.h"
#include "runtime/place/local_plan.h"

namespace troupe::runtime {

Expected<std::vector<MachineNeed>> needs_of_machines(const Plan& plan, bool guards) {
  std::vector<std::int32_t> machines;
  for (Rank r = 0; r < plan.workers(); ++r) machines.push_back(plan.costs.node(r));
  std::optional<GuardLayout> layout;
  if (guards && plan.keeps_version() && needs_guards(plan, machines)) layout.emplace(plan, machines);
  std::vector<MachineNeed> needs;
  for (Rank r = 0; r < plan.workers(); ++r) {
    const auto machine = static_cast<std::size_t>(machines[static_cast<std::size_t>(r)]);
    if (needs.size() <= machine) needs.resize(machine + 1);
    TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, r));
    MachineNeed& need = needs[machine];
    const std::int64_t guard_bytes = layout ? layout->bytes(r) : 0;
    need.bytes += local.pool_bytes + local.arena_bytes + local.copies_bytes + guard_bytes;
    need.guards += guard_bytes;
    ++need.places;
  }
  return needs;
}

Expected<bool> fits(const Plan& plan, const MemoryBound& bound) {
  if (bound.by_machine.empty()) {
    TROUPE_ASSIGN(const std::int64_t bytes, needed_bytes(plan, bound.together));
    return bytes <= bound.together;
  }
  TROUPE_ASSIGN(const auto needs, needs_of_machines(plan, bound.guards));
  for (std::size_t m = 0; m < std::min(needs.size(), bound.by_machine.size()); ++m)
    if (needs[m].bytes > bound.by_machine[m]) return false;
  return true;
}

}  // namespace troupe::runtime
