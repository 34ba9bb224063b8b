// What each place writes into a checkpoint: every logical byte once in the job, however many places have a replica.
//
// Along dp each replica of a parameter writes some rows of it and of its moments: those that ZeRO would make its share.
// So the replicas write about as many bytes each, and a checkpoint of ZeRO 0 has the parts of one of ZeRO 3. Along a
// model axis that does not split a tensor, the places of one coordinate write it: SavedParts chooses the place that has
// the fewest bytes to write so far.
#pragma once

#include <optional>
#include <vector>

#include "checkpoint/shard.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// A rectangle of a parameter, and of its moments if it has some, that a place writes.
struct SavedPart {
  std::int32_t param = 0;  ///< index into Plan::params
  Extent extent;           ///< not empty
  bool trained = false;
};

/// Which coordinates write, for every parameter: a pure function of the plan.
class SavedParts {
 public:
  /// REQUIRES: `plan` outlives this object.
  explicit SavedParts(const Plan& plan);
  /// What `rank` writes of the parameters of a snapshot or copy actor of its stage, in their order.
  std::vector<SavedPart> of(Rank rank, const PlanActor& snapshot) const;
  /// What `rank` writes of a parameter; nullopt: nothing.
  std::optional<SavedPart> of(Rank rank, std::int32_t param) const;
  /// The same as entries of a shard, cut to rows that can be read one by one; not laid out.
  std::vector<checkpoint::ShardEntry> entries(Rank rank, const PlanActor& snapshot) const;
  /// Whether AdamW makes a parameter: it has moments.
  bool trained(std::int32_t param) const { return trained_[static_cast<std::size_t>(param)]; }

 private:
  const Plan& plan_;
  const std::vector<bool> trained_;  // per parameter
  // Per parameter, per axis of its mesh: the coordinate that writes; -1: each.
  std::vector<std::vector<std::int64_t>> writer_;
};

}  // namespace troupe::runtime
