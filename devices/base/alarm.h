// The Alarm seam: functions to run at a time, so that a simulation can own the waiting.
#pragma once

#include <cstdint>
#include <functional>

#include "devices/base/clock.h"

namespace troupe {

class Alarm {
 public:
  virtual ~Alarm() = default;
  virtual const Clock& clock() const = 0;
  /// Runs fn when the clock shows due_ns, at once if that is past. One at a time, by (due_ns, order of calls), never
  /// inside at(). Thread-safe; fn may call it.
  virtual void at(std::int64_t due_ns, std::function<void()> fn) = 0;
  /// Forgets the functions that have not begun, and those that are set meanwhile; returns when none is running.
  /// Idempotent; the alarm stays usable. REQUIRES that no function that the alarm runs calls it.
  virtual void quiesce() = 0;
};

}  // namespace troupe
