// MicrobatchOwners: which dp coordinates of a stage run which microbatches of a program, and in which of their acts.
// Planner, verifier, game, worker and session all ask this class.
//
// A microbatch is what one pass of a program through the graph computes (ProgramSpec::microbatches).
//
//   owner          the dp coordinate that runs a microbatch
//   order          in which all places run them, so no two wait for each other: that of their numbers; of `blocks`
//                  blocks, as S(0) divides them, the first of each, then the second of each
//   microbatches   those of a coordinate, in this order
//   round          the k-th acts of all coordinates together, as exchanges over dp see them
//
// In a sequential program microbatches may depend on each other: round k is microbatch k alone.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/graph/graph.h"

namespace troupe::runtime {

/// A value for one thread: it remembers what it has counted, so a loop over coordinates or rounds keeps one object.
class MicrobatchOwners {
 public:
  /// Of a stage of `width` dp coordinates. `owners`: by microbatch; null: coordinates take turns, so that one of as
  /// many as there are blocks runs a block; where the program keeps state, coordinate 0 runs all. REQUIRES: both
  /// outlive this object; owners has passed check_owners (plan.h); `blocks` is 1 with owners, and where microbatches
  /// depend on each other.
  MicrobatchOwners(const ProgramSpec& program, std::int64_t width, const std::vector<std::int32_t>* owners,
                   std::int64_t blocks)
      : program_(program), width_(width), owners_(program.stateful ? nullptr : owners), blocks_(blocks) {}

  std::int64_t width() const { return width_; }
  std::int64_t owner(std::int64_t microbatch) const {
    if (owners_) return (*owners_)[static_cast<std::size_t>(microbatch)];
    return program_.stateful ? 0 : place(microbatch) % width_;
  }
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
  /// Of a microbatch in the order, and the microbatch there.
  std::int64_t place(std::int64_t microbatch) const;
  std::int64_t at(std::int64_t place) const;
  std::int32_t count(std::int64_t dp_index) const;
  /// Microbatches by dp coordinate, counted once. REQUIRES: owners.
  const std::vector<std::int32_t>& counts() const;

  const ProgramSpec& program_;
  std::int64_t width_;
  const std::vector<std::int32_t>* owners_;
  std::int64_t blocks_;
  mutable std::vector<std::int32_t> counts_;  // empty: not counted yet
};

}  // namespace troupe::runtime
