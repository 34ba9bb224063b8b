// What lies in the memory of a place that has outlived its worker: whole versions of parameters and moments (CO-1 whole
// version, actors/version_word.h; CO-7 copies, actors/copy.h).
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

/// A version of a group of parameters that lies whole in a slot: of trained parameters, or of copies.
struct HeldVersion {
  std::string group;  ///< the channel of parameters, or the copy actor
  std::int32_t slot = 0;
  std::int64_t version = 0;
  /// parameters with the exponents of their sums, then moments; of a copy, what it has of these without the exponents
  std::span<const std::byte> state;
};

/// What the kept memory of a place (LocalPlan::kept_bytes) holds, group by group. Nothing where the plan is not
/// recoverable.
std::vector<HeldVersion> held_versions(const Plan& plan, const LocalPlan& local, std::byte* kept);
/// The versions of which a place holds every group, in order. A place without any group holds whatever the others do:
/// nullopt.
std::optional<std::vector<std::int64_t>> whole_versions(const Plan& plan, const LocalPlan& local, std::byte* kept);
/// Whether a place holds all that it has of this version.
bool holds(const Plan& plan, const LocalPlan& local, std::byte* kept, std::int64_t version);
/// From here on the memory holds no version.
void clear_versions(const Plan& plan, const LocalPlan& local, std::byte* kept);
/// From here on the memory holds no version, and reads as zeros: for a place that begins with initial values or from a
/// checkpoint.
void forget_versions(const Plan& plan, const LocalPlan& local, std::byte* kept);

}  // namespace troupe::runtime
