// What actors tell the session besides that they are done: losses, digests, an application's own numbers; and of their
// gradients square sums and peaks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troupe::actors {

/// Numbers that a worker reports to the session.
struct Report {
  enum class Kind : std::uint8_t {
    value,  ///< what the application reports, under a name of its own
    loss,   ///< a microbatch's part of the loss that is minimised
    /// The two words of a parameter's digest, and 1 where all of its elements are finite, else 0; `name` is
    /// NAME|EXTENT.
    digest,
    shard,  ///< the shard that a place has written: see actors/writer.h
    /// of a shard so far: [stall in seconds, bytes of parameters, of moments]
    saving,
  };
  Kind kind = Kind::value;
  std::string name;
  std::int64_t step = 0;
  std::int32_t microbatch = -1;
  std::vector<double> values;
  std::vector<std::byte> bytes;  ///< shard only
};
using ReportSink = std::function<void(std::uint16_t program, Report)>;

/// What a place tells of the gradients of a step. Nothing in it has a name: place and session know its order from the
/// plan (runtime/place/gradient_parts.h).
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
