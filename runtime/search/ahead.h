// How a plan hides exchanges inside stages: microbatches ahead of 1F1B (Pipeline::ahead), and weight gradients as a
// pass of their own (Pipeline::weights_apart). Chosen by playing the plans. Both keep more in memory; no bit depends on
// them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/compile/compile.h"
#include "runtime/place/machine_memory.h"

namespace troupe::runtime {

/// What became of a plan that was tried.
enum class AheadVerdict {
  chosen,
  surpassed,     ///< taken, then given up for a later one: a faster one, or one with less memory
  gains_little,  ///< is shorter by less than ahead_gain_min, for each microbatch more
  loses,         ///< is longer by ahead_gain_min or more, or needs more memory and is not shorter
  rivalled,  ///< would be taken, but for a plan tried before, with one microbatch more and shorter by ahead_gain_min
  does_not_fit,
  refused,  ///< does not compile or play
};

/// A plan that was tried for the choice.
struct AheadTried {
  std::int32_t ahead = 0;
  bool weights_apart = false;
  AheadVerdict verdict = AheadVerdict::refused;
  double step_s = 0;             ///< predicted; 0 where it is refused
  double compute_s = 0;          ///< of it the busiest compute stream's, forward and backward
  std::int64_t place_bytes = 0;  ///< pool of the place with most; 0 where it is refused
  std::string why;               ///< it is refused; otherwise empty
  bool taken() const { return verdict == AheadVerdict::chosen || verdict == AheadVerdict::surpassed; }
};

struct AheadChoice {
  Plan plan;
  /// In the order in which they were tried; empty: nothing to choose. A first one that does not fit is the plan.
  std::vector<AheadTried> tried;
  std::string why_none;              ///< why there was nothing to choose; empty where plans were tried
  std::optional<MemoryBound> bound;  ///< of what places might need; none: they had none
};

/// A further microbatch ahead, or weight gradients apart, must make the step shorter by this share: either costs
/// memory, and predictions have errors.
inline constexpr double ahead_gain_min = 0.01;

/// How many microbatches more are tried at once: two more can pay where one does not.
inline constexpr std::int32_t ahead_reach = 2;

/// Begins with no microbatch ahead and weight gradients in their backward pass. Tries microbatches more, up to
/// ahead_reach at once, as long as the step becomes shorter by ahead_gain_min for each; then, where a model axis
/// divides a stage, weight gradients apart, or else in place of one microbatch (unless apart beside that one is shorter
/// by ahead_gain_min still); beside them, one microbatch less as
/// long as the step becomes longer by less than that for no more memory, else more again. At last tries all of a
/// place's microbatches under way, where they could pay even if they hid everything, and then fewer as above: on links
/// whose latencies are long beside a microbatch the step is shorter only then. Takes no plan whose places
/// need more than `bound` (none: as much as they like), nor one that does not compile or play: it ends its
/// row of microbatches. Chooses the plan taken last, or the first where that does not fit. Error: the first does not
/// compile or play, or options.pipeline has microbatches ahead or weight gradients apart. Compiles only the first where
/// no stage has an exchange in the middle of its passes, and where the pipeline has an order.
Expected<AheadChoice> choose_ahead(const Graph& graph, CompileOptions options,
                                   std::optional<MemoryBound> bound = std::nullopt);

}  // namespace troupe::runtime
