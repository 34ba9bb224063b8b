// Plans and games as text and pictures: what `troupe plan` and `troupe sim` print, and plan.txt holds.
// Pure functions of their arguments.
//
//   PT-1  (every exchange) every exchange of the plan is shown: by a line of its own, or by a remark that names its
//         layer.
#pragma once

#include <string>
#include <vector>

#include "runtime/simulate/token_game.h"

namespace troupe::runtime {

struct AheadTried;  // runtime/search/ahead.h

/// The whole plan, for people. `representatives`: the local plans of `predicted.places`, one place of each
/// kind, for their memory.
std::string plan_text(const Plan& plan, const std::vector<LocalPlan>& representatives, const GameResult& predicted);

/// The plan for Graphviz: a cluster per stage, a node per actor, an edge per channel and reader.
/// Stages are chained by their exchanges. Draw with `dot -Tsvg`.
std::string plan_dot(const Plan& plan);

/// The result of a game: per stage the order of forward and backward work, then makespan, bubble, stash.
std::string game_text(const Plan& plan, const GameResult& result);

/// What was tried to hide exchanges inside stages (choose_ahead): a row for each plan, with what it costs, gains and
/// became. `bound`: what was asked of its memory.
std::string ahead_text(const std::vector<AheadTried>& tried, const std::string& bound);

/// Per stage, in order of their begin: "F3" for the forward work of microbatch 3, "B3" for its backward
/// work, of the step program's first step. A stage's several segments count as one, from when the first begins.
/// Where several places of a stage were played, the order is the first place's.
std::vector<std::vector<std::string>> stage_orders(const Plan& plan, const GameResult& result);

}  // namespace troupe::runtime
