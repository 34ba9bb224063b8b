// The steady state of a token game: the same moment seen twice, some microbatches apart.
//
// A game's next moves depend on its state only: tokens, slots, acts under way and the times until they end, all counted
// from the microbatch at hand. Where that state returns, the moves in between return as well, until an actor ends the
// step. So a game of M' microbatches with such a cycle of d in each step gives the game of M' + k d microbatches: the
// cycle occurs k times more. Marked graphs become periodic soon (Cohen, Dubois, Quadrat and Viot, 1985).
//
//   GP-1  (no guess) no microbatch is left out of a step in which no state has returned;
//   GP-2  (exact) the result with cycles repeated is, to the bit, that of the whole game: times are whole nanoseconds.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// An act on a compute stream, as played.
struct PlayedAct {
  Rank rank = 0;
  const PlanActor* actor = nullptr;  ///< of the plan
  bool shared = false;               ///< a part of a unit that all stages share
  std::int64_t step = 0;
  std::int32_t microbatch = -1;
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// The events after `from_ns`, up to `to_ns`, in a step, which have brought the game `microbatches`
/// further into the state in which it was.
struct Cycle {
  std::int64_t step = 0;
  std::int64_t from_ns = 0, to_ns = 0;
  std::int64_t microbatches = 0;
};

/// Looks for the cycle of each step.
class CycleSearch {
 public:
  /// Takes the state at the end of instant `now_ns`, with `microbatch` at hand. REQUIRES: all actors that act once per
  /// microbatch are within step `step`; steps ascend.
  void see(std::int64_t step, std::int64_t microbatch, std::int64_t now_ns, std::vector<std::int64_t> state);
  /// Whether the cycle of step `step`, the last or a later one, is found: its further states tell nothing.
  bool has_found(std::int64_t step) const { return !cycles_.empty() && cycles_.back().step == step; }
  /// The cycles found, in order of time, at most one per step.
  const std::vector<Cycle>& cycles() const { return cycles_; }

 private:
  struct Seen {
    std::int64_t microbatch = 0, now_ns = 0;
    std::vector<std::int64_t> state;
  };
  std::int64_t step_ = -1;
  std::vector<Seen> seen_;  // in this step
  std::vector<Cycle> cycles_;
};

/// Inserts `microbatches` into each step by repeating its cycle. `acts`: the acts played; `times_ns`: other moments of
/// the game. Returns false and changes nothing if one of the `steps` steps has no cycle whose length divides
/// `microbatches`.
bool repeat(const std::vector<Cycle>& cycles, std::int64_t steps, std::int64_t microbatches, std::int32_t step_program,
            std::vector<PlayedAct>& acts, std::vector<std::int64_t>& times_ns);

}  // namespace troupe::runtime
