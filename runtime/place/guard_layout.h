// GuardLayout: which place keeps guards for which (CO-8 guards), and where they lie in its memory. A pure function of
// the plan and of the machines of its ranks, so that all places and the coordinator agree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/place/guard_rule.h"
#include "runtime/place/local_plan.h"

namespace troupe::runtime {

/// What a place has of a guarded version: one slot, of which it keeps guard_slots for each rank that it guards, and for
/// itself.
struct GuardedPart {
  std::vector<CopiedPart> parts;    ///< with their offsets in a slot
  std::int64_t version_offset = 0;  ///< in a slot: of its version (actors/version_word.h)
  std::int64_t slot_bytes = 0;      ///< whole pages
};
inline constexpr std::int32_t guard_slots = 2;

GuardedPart guarded_part(const Plan& plan, Rank rank);

class GuardLayout {
 public:
  /// `machines`: by rank of the plan. REQUIRES: `plan` outlives this object.
  GuardLayout(const Plan& plan, std::span<const std::int32_t> machines);
  const GuardedPart& part(Rank of) const { return parts_[static_cast<std::size_t>(of)]; }
  /// The rank on the next machine that keeps what this one has; -1: there is one machine only.
  Rank guard_of(Rank rank) const { return guards_[static_cast<std::size_t>(rank)]; }
  /// The ranks whose parts lie with this one: itself first.
  const std::vector<Rank>& kept_by(Rank rank) const { return kept_[static_cast<std::size_t>(rank)]; }
  /// Where slot 0 of the part of rank `of` lies in the guard memory of `keeper`. REQUIRES: it lies there.
  std::int64_t offset(Rank keeper, Rank of) const;
  /// The guard memory of a place.
  std::int64_t bytes(Rank rank) const;

 private:
  std::vector<GuardedPart> parts_;  // by rank, as what follows
  std::vector<Rank> guards_;
  std::vector<std::vector<Rank>> kept_;
};

/// As peers_of(), with the ranks that the place guards, and its own guard.
std::vector<Rank> peers_with_guards(const Plan& plan, const LocalPlan& local, const GuardRule& rule);

/// Whether a machine has a part of the state that no other has: only then are there guards.
bool needs_guards(const Plan& plan, std::span<const std::int32_t> machines);

}  // namespace troupe::runtime
