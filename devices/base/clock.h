// The Clock seam: time as a dependency, so that a simulation can own it.
#pragma once

#include <cstdint>

namespace troupe {

/// Nanoseconds since an arbitrary origin. Thread-safe, except ManualClock.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t now_ns() const = 0;
};

/// The machine's steady clock.
class SteadyClock final : public Clock {
 public:
  std::int64_t now_ns() const override;
};

/// A clock that moves only by advance_to(). For one thread.
class ManualClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return now_ns_; }
  void advance_to(std::int64_t t_ns) { now_ns_ = t_ns; }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace troupe
