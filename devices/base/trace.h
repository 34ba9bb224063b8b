// The trace seam: what every actor did, when. A row per actor, an arrow per message.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace troupe {

/// One act of one actor (or one span on a stream). Times in nanoseconds of the worker's Clock.
struct TraceSpan {
  std::string row;   ///< the actor's name
  std::string name;  ///< what is shown on the span
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t step = 0;
  std::int32_t microbatch = -1;  ///< -1: once per step
  std::uint64_t flow_in = 0;     ///< id of the message that made this act possible; 0: none
  std::uint64_t flow_out = 0;    ///< id of the message that this act published; 0: none
};

/// The steps that are traced: [first, first + steps). By default none.
struct TraceWindow {
  std::int64_t first = 0, steps = 0;
  bool contains(std::int64_t step) const { return step >= first && step - first < steps; }
};

/// Receives spans. Implementations are thread-safe and do not block for long.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// True when spans of this step are kept; a caller need not make others.
  virtual bool wants(std::int64_t) const { return true; }
  virtual void record(TraceSpan span) = 0;
};

/// Keeps the spans of a window of steps, `spans_max` of them over its whole life: a trace costs bounded memory however
/// long the job and however large its step.
class TraceRecorder final : public TraceSink {
 public:
  static constexpr std::int64_t spans_kept = 100'000;  ///< some 20 MB
  explicit TraceRecorder(TraceWindow window, std::int64_t spans_max = spans_kept) : window_(window), room_(spans_max) {}

  bool wants(std::int64_t step) const override { return window_.contains(step); }
  void record(TraceSpan span) override;

  /// The spans kept since the last take(), and the number of spans for which there was no room.
  struct Taken {
    std::vector<TraceSpan> spans;
    std::int64_t dropped = 0;
  };
  Taken take();

 private:
  const TraceWindow window_;
  std::mutex mutex_;
  std::int64_t room_;
  Taken kept_;
};

}  // namespace troupe
