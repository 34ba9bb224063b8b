// Pipeline schedules: in which order the stages of a pipeline begin their passes. Pure functions of the numbers of
// stages and microbatches.
//
// 1F1B needs no order: the number of stash slots enforces it. The other schedules do: where two passes are ready at
// nearly the same moment, priorities alone sometimes start the wrong pass, and the bubble grows by a whole pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "devices/base/status.h"

namespace troupe::runtime {

/// A microbatch goes through a stage forwards and backwards; where the backward pass is split, weights is the part that
/// makes nothing but parameter gradients, backward the part that makes the gradient of the stage's input.
enum class Pass : std::uint8_t { forward, backward, weights };

struct Pipeline {
  enum class Kind : std::uint8_t {
    one_f_one_b,  ///< PipeDream-Flush (Narayanan et al., 2021)
    /// every stage has several chunks of units: virtual stage k is chunk k / S of stage k mod S (ibid.)
    interleaved,
    /// ZB-H1 (Qi et al., 2023): weight gradients fill the bubble; peak stash of 1F1B's first stage
    zero_bubble,
  };
  Kind kind = Kind::one_f_one_b;
  std::int32_t chunks = 1;  ///< virtual stages of each stage: more than 1 if interleaved, else 1
  /// 1F1B: microbatches that a stage may have under way beyond what the published schedule has. While one waits for an
  /// exchange, the stage works on another: with one stage, two microbatches fill each other's waits (TokenWeave and
  /// Domino divide the batch to this end). An order of passes leaves no choice: 0 there.
  std::int32_t ahead = 0;
  /// 1F1B: where a stage is divided along a model axis, weight gradients are a pass of their own, behind the others in
  /// priority: they run while the gradient of an input is exchanged, as Megatron-Core overlaps the two by streams.
  bool weights_apart = false;
  bool ordered() const { return kind != Kind::one_f_one_b; }
  bool splits_backward() const { return kind == Kind::zero_bubble; }
  bool operator==(const Pipeline&) const = default;
};

/// "1f1b", "interleaved:2", "zero-bubble".
std::string to_string(const Pipeline& pipeline);
/// The inverse of to_string. Error: another text; it names the legal ones.
Expected<Pipeline> parse_pipeline(const std::string& text);

/// One pass of one microbatch (an index among those of the place) through one chunk of a stage.
struct PassOf {
  Pass pass = Pass::forward;
  std::int32_t chunk = 0, microbatch = 0;
  bool operator==(const PassOf&) const = default;
};

/// The order in which `stage` of `stages` begins its passes in one step of `microbatches`.
///
/// Interleaved: microbatches go in groups through one chunk after another. As in Megatron, a group has S of them; where
/// S does not divide their number the groups are a little larger (the first ones by one more than the last ones), which
/// keeps the bubble and costs as many more slots. Fewer than S are one group.
/// Zero-bubble: on stage s weight gradients follow s microbatches behind input gradients.
std::vector<PassOf> pass_order(const Pipeline& pipeline, std::int32_t stages, std::int32_t stage,
                               std::int32_t microbatches);

/// Most microbatches that have begun `from` and not yet `to` at any point of `order`: slots between two passes of a
/// stage. Ignores the microbatches of `from` and `to`.
std::int32_t most_between(const std::vector<PassOf>& order, const PassOf& from, const PassOf& to);

/// Seconds that a stage waits in a step of at least S microbatches, as published. With tF, tB (without tW), tW seconds
/// of one microbatch on one stage: (S-1)(tF+tB+tW) for 1F1B, that divided by the chunks for interleaved,
/// (S-1)(tF+tB-tW) for ZB-H1 (if tW <= tF).
double published_bubble_s(const Pipeline& pipeline, std::int32_t stages, double forward_s, double backward_s,
                          double weights_s);

}  // namespace troupe::runtime
