// LocalPlan: what one place runs, with numbers where the plan has rules. A place is a device of the job with the actors
// on it; a rank names it. Pure arithmetic on the plan: a worker builds its own, the verifier builds the plans of the
// few places that it checks in place of all.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "actors/actor_core.h"
#include "checkpoint/shard.h"
#include "comm/exchange.h"
#include "placement/boxing.h"
#include "runtime/place/state_part.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// A channel at one place. Bytes and offsets count in the worker's pool; of a snapshot in its arena. A device with
/// memory of its own has a pool of the same offsets there.
struct LocalChannel {
  std::int32_t channel = 0;  ///< in the role
  std::int64_t slot_bytes = 0;
  std::int32_t slots = 1;
  std::int64_t offset = 0;           ///< of slot 0
  std::int64_t moments_offset = 0;   ///< trained parameters: of their moments in a slot (moments_offsets)
  std::int64_t version_offset = -1;  ///< parameters with two slots: of the slot's version (actors/version_word.h)
  /// Only acts that a device computes, snapshots and copies touch its slots: where the device has memory of its own
  /// they lie there. Others lie in host memory, which such a device reads and writes over the bus.
  bool of_device = false;
  std::vector<actors::Reader> readers;  ///< of channels that the conductor writes
};

/// What a copy actor copies of a parameter: its rows that SavedParts gives to this place.
struct CopiedPart {
  std::int32_t param = 0;  ///< index into Plan::params
  StatePart part = StatePart::parameter;
  Extent extent;            ///< not empty
  std::int64_t offset = 0;  ///< bytes into a slot of the copies
};

/// The slots of a copy actor, in the memory for copies.
inline constexpr std::int32_t copy_slots = 2;
struct CopySlots {
  std::int64_t offset = 0;  ///< of slot 0
  std::int64_t slot_bytes = 0;
  std::int64_t version_offset = 0;  ///< in a slot: of its version (actors/version_word.h)
};

/// An actor at one place.
struct LocalActor {
  std::int32_t actor = 0;  ///< in the role
  actors::ActorSpec spec;
  std::vector<std::int32_t> in, out;  ///< indices into LocalPlan::channels, by port
  // Exchanges only.
  std::vector<comm::Route> routes;
  std::vector<std::int32_t> route_of;    ///< per local act of a step
  std::int64_t acts_per_run = 1;         ///< of the whole job: numbers messages the same at all ends
  std::vector<std::vector<Rank>> peers;  ///< per route
  std::int64_t staging_bytes = 0;        ///< of one act
  std::int32_t staging_slots = 0;
  std::int64_t staging_offset = 0;   ///< in the pool
  std::int64_t op_state_offset = 0;  ///< segments: of their ops' state, in the pool
  /// Snapshots: what they copy, laid out from byte 0 of their slot (SavedParts).
  std::vector<checkpoint::ShardEntry> saved;
  std::vector<CopiedPart> copied;  ///< of a copy actor; empty: the place has nothing of its group to copy
  CopySlots copies;
};

/// Bytes by purpose, at one place.
struct MemoryUse {
  std::int64_t parameters = 0, gathered = 0, gradients = 0, optimizer = 0, stash = 0, activations = 0, boundary = 0,
               scratch = 0, staging = 0, control = 0;
  std::int64_t op_state = 0;  ///< what ops keep from act to act: `cache` in the plan's text
  std::int64_t arena = 0;     ///< host memory, whatever the device
  std::int64_t copies = 0;    ///< likewise
  std::int64_t shared = 0;    ///< of all of the above: bytes that lie where others lie at other times
  std::int64_t total() const {
    return parameters + gathered + gradients + optimizer + stash + activations + boundary + scratch + op_state +
           staging + control + arena + copies - shared;
  }
};

struct LocalPlan {
  Rank rank = 0;
  std::int32_t stage = 0;
  std::int64_t dp_index = 0;
  bool leads = true;  ///< Plan::leads: reports the values that its dp coordinate's places share
  std::vector<LocalActor> actors;
  std::vector<LocalChannel> channels;
  /// The state area, from the pool's first byte: slots of parameters with their moments, then what ops keep from act to
  /// act. Whole pages, with nothing else in them; whatever lies behind it is made anew in every step.
  std::int64_t state_area_bytes = 0;
  std::int64_t scratch_offset = 0;  ///< of the compute stream
  std::int64_t scratch_bytes = 0;
  std::int64_t pool_bytes = 0;
  std::int64_t arena_bytes = 0;   ///< host memory from which checkpoints are written
  std::int64_t copies_bytes = 0;  ///< host memory for copies, whole pages; 0: the plan keeps none (Plan::keeps_copies)
  /// Bytes that outlive the processes of the place where its job recovers: those of copies, or the state area.
  std::int64_t kept_bytes() const { return copies_bytes > 0 ? copies_bytes : state_area_bytes; }
  MemoryUse memory;
  /// per program: actors that close its step here; those of programs that train together close that of the first
  std::vector<std::int32_t> closers;
};

/// Error: a rank that is on no stage; a boxing that needs an extent which no place has, by name.
Expected<LocalPlan> local_plan(const Plan& plan, Rank rank);
/// Bytes that all places need together, pools and arenas. Adds no further place where they are more than `enough`.
Expected<std::int64_t> needed_bytes(const Plan& plan, std::int64_t enough = std::numeric_limits<std::int64_t>::max());

/// The reduction of a gradient: over dp, and over the model axes on which `gradient` is a sum (P) and `to` is none,
/// among the places that have `self`'s coordinates on all other axes. Terms are numbered by place; each place's extent
/// of `to` is a result. `takes_part`: whether a dp coordinate brings a term (runs a microbatch of the round); empty:
/// all do.
BoxingGroup reduction_group(const Plan& plan, std::int32_t gradient, std::int32_t to, Rank self,
                            const std::function<bool(std::int64_t dp)>& takes_part = {});

/// Where an actor reads the exponent of a parameter's exact gradient sums, an int32: which input port, and which byte
/// of its slot. The last tensor of a trained group's parameter slot has one for each of the group's parameters.
struct Exponent {
  std::int32_t port = -1;  ///< -1: the actor does not read the parameter's slot
  std::int64_t offset = 0;
};
Exponent exponent_of(const Plan& plan, const PlanRole& role, const PlanActor& actor, std::int32_t param);
/// The byte of the exponent of the `index`-th parameter in a slot of trained parameters.
inline std::int64_t exponent_at(const PlanChannel& params, std::int64_t index) {
  return params.offsets.back() + 4 * index;
}

/// Ranks with which a place exchanges messages, in ascending order.
std::vector<Rank> peers_of(const LocalPlan& local);

/// Byte offsets, in a slot of parameters, of the moments of an update actor's params, in order, from `total` on; the
/// second moment follows the first; -1: it has none. Adds their bytes to `total`.
std::vector<std::int64_t> moments_offsets(const Plan& plan, Rank rank, const PlanActor& update, std::int64_t& total);

}  // namespace troupe::runtime
