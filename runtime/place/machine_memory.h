// What the places of a plan need of the memory of each machine, and whether a job's machines have it.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "devices/base/status.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

struct MachineNeed {
  std::int64_t bytes = 0;   ///< of its places, guards included
  std::int64_t guards = 0;  ///< of them for what machines guard for each other
  std::int32_t places = 0;
};

/// By machine (CostModel::node of the plan's costs). `guards`: machines guard for each other what one alone has, where
/// one has any. Error: as local_plan.
Expected<std::vector<MachineNeed>> needs_of_machines(const Plan& plan, bool guards);

/// Bytes that places may need.
struct MemoryBound {
  MemoryBound(std::int64_t of_all) : together(of_all) {}
  /// Of each machine's places: a machine behind the end has no bound. `with_guards`: as of needs_of_machines.
  MemoryBound(std::vector<std::int64_t> of_machines, bool with_guards)
      : by_machine(std::move(of_machines)), guards(with_guards) {}
  std::int64_t together = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> by_machine;
  bool guards = false;
};

/// Error: as local_plan.
Expected<bool> fits(const Plan& plan, const MemoryBound& bound);

}  // namespace troupe::runtime
