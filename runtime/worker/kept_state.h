// What lies in the memory of a place that has outlived its worker: whole versions of parameters and moments (CO-1 whole
// version, actors/version_word.h).
//
//   CO-5  (suspect memory) the memory of a process that may have written anywhere (SIGSEGV, SIGBUS, SIGILL, SIGFPE,
//         SIGABRT) holds nothing: its place begins with new memory, and so the job from a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/place/local_plan.h"

namespace troupe::runtime {

/// A version that lies whole in a slot of trained parameters.
struct HeldVersion {
  std::string channel;
  std::int32_t slot = 0;
  std::int64_t version = 0;
  std::span<const std::byte> state;  ///< parameters with the exponents of their sums, then moments
};

/// What the state area `pool` of a place holds, group by group. Nothing where the plan keeps no version.
std::vector<HeldVersion> held_versions(const Plan& plan, const LocalPlan& local, std::byte* pool);
/// The versions of which a place holds every group, in order; the same on all places that have trained parameters. A
/// place without any holds whatever the others do: nullopt.
std::optional<std::vector<std::int64_t>> whole_versions(const Plan& plan, const LocalPlan& local, std::byte* pool);
/// Whether a place holds all that it has of this version.
bool holds(const Plan& plan, const LocalPlan& local, std::byte* pool, std::int64_t version);
/// From here on the area holds no version.
void clear_versions(const LocalPlan& local, std::byte* pool);
/// From here on the area holds no version, and reads as zeros: for a place that begins with initial values or from a
/// checkpoint.
void forget_versions(const LocalPlan& local, std::byte* pool);

}  // namespace troupe::runtime
