// The token game: a plan played on virtual time with the very classes that run it (ActorCore, SimDevice's
// streams, the ReadyQueue rule). The verifier asks only whether a game ends; with a cost model the game is the
// simulator.
//
// An exchange is played message by message, through the network interfaces and links of both ends (LinkCost), each of
// which carries one message after the other; what arrives is added on the communication stream. Every stream runs one
// task at a time.
//
// Places that behave alike are played once: along tp, given a dp axis; along dp where every stage has the same width,
// the plan names no owners, the programs that are played have no feeds, and every round has a microbatch of each dp
// coordinate (the place with the largest share is played for all). Where the places of a coordinate and stage are on
// several nodes, or have odd links, each of them is played, and coordinates with other links than the first once more;
// between coordinates on several nodes no exchange takes less than the planner's time of its slowest place. The
// repetitions of a steady state are not played (game_period.h). One run proves all timings for marked graphs: one
// writer per channel, no data-dependent choice (Commoner et al., 1971).
#pragma once

#include <string>
#include <vector>

#include "runtime/place/local_plan.h"
#include "runtime/simulate/game_links.h"

namespace troupe::runtime {

struct GameOptions {
  std::int64_t steps = 2;          ///< of the step program
  double control_s = 50e-6;        ///< vote -> commit
  double hop_s = 0;                ///< added to every exchange
  bool every_program = true;       ///< also run the other programs once
  bool unlimited_slots = false;    ///< no actor waits for a slot: the plan without back-pressure
  bool unlimited_streams = false;  ///< each actor that does not compute has a stream of its own
  bool every_microbatch = false;   ///< plays all microbatches, also those of a steady state (game_period.h)
  /// >= 0: all forward (backward) segments of a stage together take this long per microbatch, all chunks equally long;
  /// all other acts take no time except `hop_s`.
  double forward_s = -1, backward_s = -1;
  /// part of backward_s that makes weight gradients; -1: the cost model's part
  double weights_s = -1;
};

/// One act on a compute stream, as played.
struct GameAct {
  Rank rank = 0;
  std::string actor;
  Pass pass = Pass::forward;
  std::int32_t virtual_stage = 0;
  bool shared = false;  ///< this place's part of a unit that all stages share
  std::int32_t program = 0;
  std::int64_t step = 0;
  std::int32_t microbatch = -1;
  double begin_s = 0, end_s = 0;
};

struct GameResult {
  double step_s = 0;            ///< of the last step: from commit to commit
  double makespan_s = 0;        ///< of the first step's forward and backward work
  double bubble = 0;            ///< 1 - busy / (makespan x places), first step, of those played
  double published_bubble = 0;  ///< published_bubble_s of it, if all stages were like the busiest one
  double compute_s = 0;         ///< busiest compute stream, first step, forward and backward
  double messages_s = 0;        ///< busiest interface or link, step program, mean over the steps
  std::vector<GameAct> acts;    ///< in order of their start
  /// Per stage: most microbatches, counted in each chunk, between their forward work and the last of their gradients at
  /// a place.
  std::vector<std::int32_t> peak_stash;
  std::vector<MemoryUse> memory;              ///< per place of `places`
  std::vector<Rank> places;                   ///< the ranks that were played
  std::vector<std::vector<Rank>> stands_for;  ///< per place of `places`, ascending: the ranks like it, itself too
  std::vector<LocalPlan> locals;              ///< per place of `places`: its part of the plan
  /// of the step program, per step and place; further microbatches repeat a cycle
  std::int64_t played_microbatches = 0;
};

/// Plays the game. Error: a deadlock, with the waits of its actors, by name; tokens that are left over; `exhausted`,
/// before anything is played: the game could last longer than game_s_max. REQUIRES: the plan has passed check_structure
/// (verify.h).
Expected<GameResult> play(const Plan& plan, const GameOptions& options = {});

}  // namespace troupe::runtime
