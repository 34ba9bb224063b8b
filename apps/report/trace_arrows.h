// What a trace shows: of each span the part in which its actor worked, in a row where it overlaps no other, and the
// arrows between spans. An act that receives begins before its message is sent, and one that sends before what it sends
// is made: they wait. A span's work begins when the span that its arrow comes from ends, or, where that span is of
// another worker, begins.
#pragma once

#include <cstdint>
#include <vector>

#include "devices/base/trace.h"

namespace troupe::report {

struct TraceSlice {
  int worker = 0;
  const TraceSpan* span = nullptr;
  std::int64_t work_ns = 0;       ///< when its work begins; the wait before that begins with the span
  std::int64_t end_ns = 0;        ///< never before `work_ns`
  int track = 0, wait_track = 0;  ///< spans of one row that overlap have tracks of their own, so have waits
  bool waits() const { return work_ns > span->begin_ns; }
};

struct TraceArrow {
  std::size_t from = 0, to = 0;         ///< indices of slices
  std::int64_t from_ns = 0, to_ns = 0;  ///< from_ns <= to_ns; each lies in the work of its slice
};

struct TracePicture {
  std::vector<TraceSlice> slices;  ///< as the spans come, worker by worker
  std::vector<TraceArrow> arrows;  ///< those whose two ends are there
};

/// `spans`: by worker. They stay where they are. All clocks are one.
TracePicture arrange(const std::vector<std::vector<TraceSpan>>& spans);

}  // namespace troupe::report
