// How a plan hides exchanges inside stages: microbatches ahead of 1F1B (Pipeline::ahead), and weight gradients as a
// pass of their own (Pipeline::weights_apart). Chosen by playing the plans. Both keep more in memory; no bit depends on
// them.
#pragma once

#include <string>
#include <vector>

#include "runtime/compile/compile.h"

namespace troupe::runtime {

/// A plan that was played for the choice.
struct AheadTried {
  std::int32_t ahead = 0;
  bool weights_apart = false;
  double step_s = 0;             ///< predicted
  std::int64_t place_bytes = 0;  ///< of the place with most memory
  bool fits = true;
  bool taken = false;   ///< the plan taken last is the one that is chosen
  std::string refused;  ///< why it does not compile or play; empty: it does
};

struct AheadChoice {
  Plan plan;
  std::vector<AheadTried> tried;  ///< in the order in which they were played; empty: nothing to choose
};

/// A further microbatch ahead, or weight gradients apart, must make the step shorter by this share: either costs
/// memory, and predictions have errors.
inline constexpr double ahead_gain_min = 0.01;

/// Begins with no microbatch ahead and weight gradients in their backward pass. Tries one microbatch more as long as
/// the step becomes shorter by ahead_gain_min; then, where a model axis divides a stage, weight gradients apart;
/// beside them, one microbatch less as long as the step becomes longer by less than that, else one more again. Takes
/// no plan whose places together need more than `bytes_max` (0: as much as they like). Chooses the plan taken last, or
/// the first where that does not fit. A plan that does not compile or play is not taken; of the first the error is
/// returned. Compiles only the first where no stage has an exchange in the middle of its passes, and where the
/// pipeline has an order. REQUIRES: options.pipeline has none ahead and no weight gradients apart.
Expected<AheadChoice> choose_ahead(const Graph& graph, CompileOptions options, std::int64_t bytes_max = 0);

/// The choice for people: a row for each plan that was played, with what it costs and gains. `bound`: what was asked of
/// its memory. REQUIRES: one of them is taken.
std::string ahead_text(const std::vector<AheadTried>& tried, const std::string& bound);

}  // namespace troupe::runtime
