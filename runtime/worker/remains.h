// Remains: what the places of a generation have left in their memory, from which the places of another one, with
// another plan or with new memory, take their state. Healing is a boxing from the layouts of one plan to those of
// another, whose pieces are copied from memory to memory (ElasWave's live remap, 2025, without a copy of its own).
#pragma once

#include <functional>
#include <vector>

#include "runtime/worker/kept_state.h"

namespace troupe::runtime {

/// The memory of the places of a plan. REQUIRES: the plan and the memory outlive it, and no process writes there.
struct Remains {
  const Plan* plan = nullptr;
  std::vector<std::byte*> areas;  ///< by rank of the plan: its kept memory (LocalPlan::kept_bytes); null: lost
};

/// Whether a version is whole where the ranks of which `holds` says so have it: every element of every parameter, and
/// of its moments, is with one of them.
bool is_whole(const Plan& plan, const std::function<bool(Rank)>& holds);

/// Bytes that a place took.
struct HealedBytes {
  std::int64_t own = 0;    ///< from the memory that it had itself
  std::int64_t other = 0;  ///< from others
};

/// Copies what `local`'s place has of a version into slot 0 of its parameters in `pool`. What the place has itself, as
/// rank `own` of the remains' plan (-1: it had none), it takes from there (BX-2 local copies). `goes_on` is asked
/// after each parameter. Error (`internal`): the remains lack a part of the version, or a parameter, by name;
/// (`unavailable`) `goes_on` has said no.
Expected<HealedBytes> heal(const Plan& plan, const LocalPlan& local, std::byte* pool, const Remains& remains, Rank own,
                           std::int64_t version, const std::function<bool()>& goes_on = {});

}  // namespace troupe::runtime
