// A plan as Cap'n Proto bytes, as workers receive it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// Version of the schema's meaning. read_plan refuses any other.
inline constexpr std::uint32_t plan_version = 6;

/// The inverse of read_plan.
std::vector<std::byte> write_plan(const Plan& plan);
/// Error: not a plan, or a plan of another version. The plan is not verified: see verify.h.
Expected<Plan> read_plan(std::span<const std::byte> bytes);

}  // namespace troupe::runtime
