// Remains: what the places of a generation have left in their memory, from which the places of another one, with
// another plan or with new memory, take their state. Healing is a boxing from the layouts of one plan to those of
// another (ElasWave's live remap, 2025, without a copy of its own): pieces on the same machine are copied from memory
// to memory, here; those of other machines travel (heal_across.h).
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "placement/boxing.h"
#include "runtime/place/kept_extents.h"
#include "runtime/session/control.h"
#include "runtime/worker/state_pieces.h"

namespace troupe::runtime {

/// The memory of the places of a plan. REQUIRES: the plan and the memory outlive it, and no process writes there.
struct Remains {
  const Plan* plan = nullptr;
  /// by rank of the plan: its kept memory (LocalPlan::kept_bytes); null: lost, or another machine has it
  std::vector<std::byte*> areas;
  /// by rank of the plan that takes it: the rank that its place had here; -1: none
  std::vector<Rank> own;
  /// The plan that takes it is the same: a place whose own memory is not lost goes on there. Never of plans with
  /// copies.
  bool same_plan = false;
  /// By rank: the machine of its memory; -1: lost. Empty: all that is not lost is on one machine, with those who take.
  std::vector<std::int32_t> area_machines;
  std::vector<std::int32_t> machines;  ///< of several machines, by rank of the plan that takes it: where it runs
  /// What lies there are guards (CO-8 guards): `areas` point to the slots of each rank's part (GuardLayout), wherever
  /// it is kept.
  bool guards = false;
};

/// Whether a message says of each rank of both plans what becomes of it. Error (`invalid`): it does not.
Status check_home(const StateHome& home, const Plan& before, const Plan& takes);
/// What a message says of the remains, all but their memory; `plan`: that they are of.
Remains remains_of(const StateHome& home, const Plan& plan);
/// Whether the memory of rank `from` of the remains is for a rank of the plan that takes it to open.
bool opens(const StateHome& home, Rank rank, Rank from);

/// Where the part of rank `from` begins in the memory that a message names for it: 0, or where its guard keeps it.
/// Error (`invalid`): it is not kept there, or `bytes` of memory are too few for it.
Expected<std::int64_t> offset_in_area(const StateHome& home, const Plan& before, Rank from, std::size_t bytes);

/// Whether a version is whole where the ranks of which `holds` says so have it: every element of every parameter, and
/// of its moments, is with one of them.
bool is_whole(const Plan& plan, const std::function<bool(Rank)>& holds);

/// Who takes what from whom: a pure function of plans and machines, so that all places agree.
class HealingSources {
 public:
  /// REQUIRES: both outlive this object.
  HealingSources(const Plan& plan, const Remains& remains);
  /// Whether a rank of the plan takes its state from the remains.
  bool takes(Rank rank) const;
  /// Whether a rank of the plan reaches the memory of rank `from` of the remains without the transport.
  bool reaches(Rank rank, Rank from) const;
  /// The rank of the plan that sends what rank `from` of the remains has to other machines: that of the same place, or
  /// the first on its machine; -1: there is none.
  Rank sender_of(Rank from) const { return senders_[static_cast<std::size_t>(from)]; }
  /// What `rank` takes of a part of a parameter's state: transfers from ranks of the remains; from its own memory what
  /// it has there (BX-2 local copies), and from other machines only where its own lacks a part. Error (`internal`): the
  /// remains lack a part of it, or the parameter, by name.
  Expected<BoxingPlan> transfers_to(Rank rank, std::size_t param, StatePart part) const;
  /// The same parameter in the remains' plan; -1: there is none.
  std::int32_t param_there(std::size_t param) const { return params_[param]; }
  /// From here on this rank of the remains holds nothing.
  void lose(Rank from) { lost_[static_cast<std::size_t>(from)] = true; }

 private:
  Expected<BoxingPlan> transfers(Rank rank, const Extent& want, std::size_t param, StatePart part, bool far) const;

  const Plan& plan_;
  const Remains& remains_;
  const KeptExtents kept_;
  std::vector<bool> lost_;            // by rank of the remains
  std::vector<Rank> senders_;         // likewise
  std::vector<std::int32_t> params_;  // by parameter of the plan: its index there
  const std::vector<bool> trained_;   // likewise
};

/// The pieces that ranks of the remains have of a version, of those whose memory this process reaches.
using HealingPieces = std::map<Rank, StatePieces>;
/// Ranks that do not hold the version are lost to `sources`. Error (`internal`), with several machines, whose places
/// have agreed on who holds it: one does not.
Expected<HealingPieces> healing_pieces(const Remains& remains, std::int64_t version, HealingSources& sources);

/// Bytes that a place took.
struct HealedBytes {
  std::int64_t own = 0;    ///< from the memory that it had itself
  std::int64_t other = 0;  ///< from others
};

/// Copies what `local`'s place takes of a version from the memory that it reaches into slot 0 of its parameters in
/// `pool`. `goes_on` is asked after each parameter. Errors: as healing_pieces, and as HealingSources::transfers_to;
/// (`unavailable`) `goes_on` has said no.
Expected<HealedBytes> heal(const Plan& plan, const LocalPlan& local, std::byte* pool, const Remains& remains,
                           std::int64_t version, const std::function<bool()>& goes_on = {});

}  // namespace troupe::runtime
