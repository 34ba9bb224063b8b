// What actors tell the session besides that they are done: losses, digests, an application's own numbers. Of gradients:
// gradient_report.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// Numbers that a worker reports to the session.
struct Report {
  enum class Kind : std::uint8_t {
    value,  ///< what the application reports, under a name of its own
    loss,   ///< a microbatch's part of the loss that is minimised
    /// The two words of a parameter's digest, 1 where all of its elements are finite, else 0, and how many elements it
    /// has; `name` is NAME|EXTENT.
    digest,
    shard,  ///< the shard that a place has written: see actors/writer.h
    /// of a shard so far: [stall in seconds, bytes of parameters, of moments]
    saving,
    /// Elements of a parameter that is wanted, from the one on that `values` says; `name` as a digest's. Sent at once,
    /// in messages of a bounded size: what a place says of its life is not to wait behind them.
    parameter,
    finished,  ///< the actor `name` has nothing left to give at this place (UserCall::finish)
  };
  Kind kind = Kind::value;
  std::string name;
  std::int64_t step = 0;
  std::int32_t microbatch = -1;
  std::vector<double> values;
  std::vector<std::byte> bytes;  ///< of a value: what an actor has reported as bytes
  std::int32_t place = -1;       ///< rank of the place that reports, as the session knows it
  std::int32_t program = 0;      ///< of the actor that reports, as its place knows it
  /// `bytes` as text.
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};
/// Bytes of one report of an application.
inline constexpr std::size_t report_bytes_max = std::size_t{16} << 20;
using ReportSink = std::function<void(std::uint16_t program, Report)>;

}  // namespace troupe::actors
