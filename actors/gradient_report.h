// What a place tells the session of the gradients of a step, in its vote: square sums, for the norm, and peaks, for the
// exponents of the next sums. A peak is the largest magnitude of a term of a parameter's gradient in the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace troupe::actors {

/// What a place tells of the gradients of a step. Nothing in it has a name: place and session know its order from the
/// plan (runtime/place/gradient_order.h).
struct GradientReport {
  /// Each is the sum of the squares of a gradient's elements, over the rows below one node of the tree
  /// (placement/tree.h). Of the gradients that this place sums up.
  std::vector<double> square_sums;
  /// Of each gradient that the place makes: the largest magnitude of its terms, inf and NaN too.
  std::vector<float> peaks;
  /// A gradient, by index of `peaks`, with a term that was not finite or was beyond the range of its exact sum, and the
  /// lowest microbatch with such a term.
  struct Bad {
    std::int32_t peak = 0, microbatch = 0;
    bool operator==(const Bad&) const = default;
  };
  std::vector<Bad> bad;  ///< of most steps none
};

/// What one actor tells of the gradients of a step: the part of its place's report that begins at these indices.
struct GradientPart {
  std::size_t first_square_sum = 0, first_peak = 0;
  GradientReport told;  ///< `bad`: by index of its own peaks
};
using GradientSink = std::function<void(GradientPart)>;

}  // namespace troupe::actors
