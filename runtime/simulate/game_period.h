// The steady state of a token game: the same moment seen twice, some microbatches apart.
//
// A game's next moves depend on its state only: tokens, slots, acts under way and the times until they end, all counted
// from the microbatch at hand. Where that state returns, what lies between returns as well, until somebody comes to the
// end of the step. So a game of M' microbatches with such a cycle of d in each step tells all of the game of M' + k d:
// the cycle k times more. Marked graphs become periodic soon (Cohen, Dubois, Quadrat and Viot, 1985).
//
//   GP-1  nothing is left out of a step in which no state has returned;
//   GP-2  what is told with cycles repeated is, to the bit, what the whole game tells: times are whole nanoseconds.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// An act on a compute stream, as played.
struct PlayedAct {
  Rank rank = 0;
  const PlanActor* actor = nullptr;    ///< of the plan
  bool shared = false;                 ///< a part of a unit that all stages share
  std::int64_t step = 0;
  std::int32_t microbatch = -1;
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// What happened after `from_ns`, up to `to_ns`, in a step of program 0, moved it on by `microbatches`, and would again.
struct Cycle {
  std::int64_t step = 0;
  std::int64_t from_ns = 0, to_ns = 0;
  std::int64_t microbatches = 0;
};

/// Looks for the cycle of each step.
class CycleSearch {
 public:
  /// The state at the end of instant `now_ns`, with `microbatch` at hand, at a moment when everybody who acts once per
  /// microbatch is within step `step`.
  void see(std::int64_t step, std::int64_t microbatch, std::int64_t now_ns, std::vector<std::int64_t> state);
  /// Those found, in order of time, one per step.
  const std::vector<Cycle>& cycles() const { return cycles_; }

 private:
  struct Seen {
    std::int64_t microbatch = 0, now_ns = 0;
    std::vector<std::int64_t> state;
  };
  std::int64_t step_ = -1;
  std::vector<Seen> seen_;             // in this step
  std::vector<Cycle> cycles_;
};

/// Puts `microbatches` more into each step: its cycle as often as that takes. `acts` are what was played, `times_ns` other
/// moments of the game. False, and nothing changed, if some step of `steps` has no cycle that divides them.
bool repeat(const std::vector<Cycle>& cycles, std::int64_t steps, std::int64_t microbatches, std::vector<PlayedAct>& acts,
            std::vector<std::int64_t>& times_ns);

}  // namespace troupe::runtime
