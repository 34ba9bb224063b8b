// What actors tell the session besides that they are done: losses, norms, digests, an application's own numbers.
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
    value,                             ///< what the application reports, under a name of its own
    loss,                              ///< a microbatch's part of the loss that is minimised
    /// A parameter's gradient: [column, row lo, row hi, sum of squares] of tree nodes of its rows.
    norm,
    /// The two words of a parameter's digest, and 1 where all of its elements are finite, else 0; `name` is NAME|EXTENT.
    digest,
    shard,                             ///< the shard that a place has written: see actors/writer.h
    saving,                            ///< of a shard so far: [stall in seconds, bytes of parameters, of moments]
    /// A parameter's gradient terms: [largest magnitude (inf and NaN too), 1 + lowest microbatch with a term that was
    /// not finite or beyond the range of its exact sum; 0: none].
    peak,
  };
  Kind kind = Kind::value;
  std::string name;
  std::int64_t step = 0;
  std::int32_t microbatch = -1;
  std::vector<double> values;
  std::vector<std::byte> bytes;        ///< shard only
};
using ReportSink = std::function<void(std::uint16_t program, Report)>;

}  // namespace troupe::actors
