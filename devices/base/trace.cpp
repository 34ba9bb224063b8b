#include "devices/base/trace.h"

#include <utility>

namespace troupe {

void TraceRecorder::record(TraceSpan span) {
  if (!wants(span.step)) return;
  std::lock_guard lock(mutex_);
  if (room_ == 0) {
    ++kept_.dropped;
    return;
  }
  --room_;
  kept_.spans.push_back(std::move(span));
}

TraceRecorder::Taken TraceRecorder::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(kept_, {});
}

}  // namespace troupe
