// The token game: a plan played on virtual time with the very classes that run it (ActorCore, SimDevice's
// streams, the ReadyQueue rule). Played without asking for the result it is the verifier; with a cost
// model it is the simulator.
//
// A place's links to its own stage are one, those to another stage another, each way: exchanges take turns on them for what
// is not latency. Compute streams run one task at a time.
//
// Places that behave alike are played once: along tp always (given a dp axis), along dp where every stage has the same
// width (the largest share stands for all). Microbatches of a steady state are not played again and again
// (game_period.h). One run proves all timings for marked graphs: one writer per channel, no data-dependent
// choice (Commoner et al., 1971).
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/local_plan.h"

namespace troupe::runtime {

struct GameOptions {
  std::int64_t steps = 2;              ///< of program 0
  double control_s = 50e-6;            ///< vote -> commit
  double hop_s = 0;                    ///< added to every exchange
  bool every_program = true;           ///< also run the other programs once
  bool unlimited_slots = false;        ///< what no back-pressure would give
  bool unlimited_streams = false;      ///< ... and a stream for each actor that does not compute: nobody waits for one
  bool every_microbatch = false;       ///< plays them all, also where a steady state tells the rest (game_period.h)
  /// >= 0: all forward (backward) segments of a stage together take this long per microbatch, each chunk as long as the
  /// others; everything else takes no time.
  double forward_s = -1, backward_s = -1;
  double weights_s = -1;               ///< the part of backward_s that makes weight gradients; -1: as the cost model divides it
};

/// One act on a compute stream, as played.
struct GameAct {
  Rank rank = 0;
  std::string actor;
  Pass pass = Pass::forward;
  std::int32_t virtual_stage = 0;              ///< virtual stage
  bool shared = false;                 ///< this place's part of a unit that all stages share
  std::int32_t program = 0;
  std::int64_t step = 0;
  std::int32_t microbatch = -1;
  double begin_s = 0, end_s = 0;
};

struct GameResult {
  double step_s = 0;                   ///< of the last step: from commit to commit
  double makespan_s = 0;               ///< of the first step's forward and backward work
  double bubble = 0;                   ///< 1 - busy / (makespan x places played), first step
  double published_bubble = 0;         ///< as the schedule's paper has it, if all stages were like the busiest one
  double compute_s = 0;                ///< busiest compute stream, first step, forward and backward
  double messages_s = 0;               ///< busiest link, mean over the steps
  std::vector<GameAct> acts;           ///< in order of their start
  std::vector<std::int32_t> peak_stash;    ///< per stage: most microbatches between its own forward and backward work, of each chunk
  std::vector<MemoryUse> memory;       ///< per representative place
  std::vector<Rank> places;            ///< who was played
  std::int64_t played_microbatches = 0;    ///< of program 0, per step and place; the others repeat them
};

/// Plays the game. Error: a deadlock, with every actor's wait, by name. REQUIRES: the plan has passed check_structure (verify.h).
Expected<GameResult> play(const Plan& plan, const GameOptions& options = {});

}  // namespace troupe::runtime
