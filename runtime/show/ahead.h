// How many microbatches stages run ahead of 1F1B (Pipeline::ahead): chosen by playing the plans. More of them hide more
// of the exchanges inside a stage, and keep more activations; no bit depends on it.
#pragma once

#include <string>
#include <vector>

#include "runtime/compile/compile.h"

namespace troupe::runtime {

/// A plan that was played for the choice.
struct AheadTried {
  std::int32_t ahead = 0;
  double step_s = 0;             ///< predicted
  std::int64_t place_bytes = 0;  ///< of the place with most memory
  bool fits = true;
};

struct AheadChoice {
  Plan plan;
  std::vector<AheadTried> tried;  ///< ascending; empty: nothing to choose
};

/// A further microbatch ahead must make the step shorter by this share: it costs memory, and predictions have errors.
inline constexpr double ahead_gain_min = 0.01;

/// Compiles with 0, 1, 2, ... microbatches ahead, as long as each plan's step is shorter than the step of the plan
/// before by ahead_gain_min and its places together need no more than `bytes_max` (0: as much as they like); the last
/// of these plans is chosen, or the first where that does not fit. A plan that does not compile or play ends the
/// search, but for the first: its error is returned. Compiles only the first where no stage has an exchange in the
/// middle of its passes, and where the pipeline has an order. REQUIRES: options.pipeline.ahead is 0.
Expected<AheadChoice> choose_ahead(const Graph& graph, CompileOptions options, std::int64_t bytes_max = 0);

/// The choice for people: a row for each plan that was played, with what it costs and gains. `chosen`: its number;
/// `bound`: what was asked of its memory.
std::string ahead_text(const std::vector<AheadTried>& tried, std::int32_t chosen, const std::string& bound);

}  // namespace troupe::runtime
