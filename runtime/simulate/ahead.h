// How many microbatches stages run ahead of 1F1B (Pipeline::ahead): found by playing the plans. More of them hide more
// of the exchanges inside a stage, and keep more activations; no bit depends on it.
#pragma once

#include <functional>
#include <vector>

#include "runtime/compile/compile.h"
#include "runtime/simulate/token_game.h"

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

/// Compiles with 0, 1, 2, ... microbatches ahead, as long as each plan's step is shorter than the one before by
/// ahead_gain_min and `fits` accepts it; the last of them is chosen. With 0 only where no stage has an exchange in the
/// middle of its passes, and where the pipeline has an order. Errors as compile()'s and play()'s.
/// REQUIRES: options.pipeline.ahead is 0.
Expected<AheadChoice> choose_ahead(const Graph& graph, CompileOptions options,
                                   const std::function<bool(const Plan&)>& fits = {});

}  // namespace troupe::runtime
