// MicrobatchOwners: which dp coordinates of a stage run which microbatches of a program, and in which of their acts.
// Planner, verifier, game, worker and session all ask this class.
//
// A microbatch is what one pass of a program through the graph computes (ProgramSpec::microbatches).
//
//   owner          the dp coordinate that runs a microbatch
//   microbatches   those of a coordinate, in the order of its acts: ascending, so no two places wait for each other
//   round          the k-th acts of all coordinates together, as exchanges over dp see them
//
// In a sequential program microbatches may depend on each other: round k is microbatch k alone.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/sbp.h"
#include "runtime/graph/graph.h"

namespace troupe::runtime {

/// A value for one thread: it remembers what it has counted, so a loop over coordinates or rounds keeps one object.
class MicrobatchOwners {
 public:
  /// Of a stage of `width` dp coordinates. `owners`: by microbatch; null: microbatch m is run by m mod width, or, in
  /// blocks, as S(0) divides them; where the program keeps state, by coordinate 0. REQUIRES: both outlive this object;
  /// owners has passed check_owners (plan.h).
  MicrobatchOwners(const ProgramSpec& program, std::int64_t width, const std::vector<std::int32_t>* owners,
                   bool in_blocks)
      : program_(program), width_(width), owners_(program.stateful ? nullptr : owners),
        in_blocks_(in_blocks && !program.stateful && !owners) {}

  std::int64_t width() const { return width_; }
  std::int64_t owner(std::int64_t microbatch) const;
  std::vector<std::int32_t> microbatches(std::int64_t dp_index) const;
  /// The microbatch of a coordinate's act `act`, counted from 0: microbatches(dp_index)[act]. REQUIRES: there is one.
  std::int32_t microbatch_at(std::int64_t dp_index, std::int64_t act) const;
  std::int32_t rounds() const;
  /// Whether a coordinate runs a microbatch in this round.
  bool runs_in_round(std::int64_t dp_index, std::int32_t round) const;
  /// Acts of an actor, or tokens of a channel, of this rate at a place of this coordinate, in one run of the program.
  std::int32_t acts(Rate rate, std::int64_t dp_index) const;
  /// Acts of an exchange in one run, of the whole job: all ends number its messages with it.
  std::int64_t acts_of_job(Rate rate) const { return rate == Rate::microbatch ? program_.microbatches : acts(rate, 0); }

 private:
  /// Those of a coordinate. REQUIRES: in_blocks_.
  Range block(std::int64_t dp_index) const { return split_range({0, program_.microbatches}, width_, dp_index); }
  std::int32_t count(std::int64_t dp_index) const;
  /// Microbatches by dp coordinate, counted once. REQUIRES: owners.
  const std::vector<std::int32_t>& counts() const;

  const ProgramSpec& program_;
  std::int64_t width_;
  const std::vector<std::int32_t>* owners_;
  bool in_blocks_;
  mutable std::vector<std::int32_t> counts_;  // empty: not counted yet
};

}  // namespace troupe::runtime
