// The trace seam: what every actor did, when. A row per actor, an arrow per message.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

/// One act of one actor (or one span on a stream). Times in nanoseconds of the worker's Clock.
struct TraceSpan {
  std::string row;                ///< the actor's name
  std::string name;               ///< what is shown on the span
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t step = 0;
  std::int32_t microbatch = -1;   ///< -1: once per step
  std::uint64_t flow_in = 0;      ///< id of the message that made this act possible; 0: none
  std::uint64_t flow_out = 0;     ///< id of the message that this act published; 0: none
};

/// Where spans go. `record` is thread-safe and must not block for long.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void record(TraceSpan span) = 0;
};

}  // namespace troupe
