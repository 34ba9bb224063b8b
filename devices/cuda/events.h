// Events of one GPU, kept for the next use: making one costs more than recording it.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <utility>
#include <vector>

namespace troupe::cuda {

class EventPool;

/// An event of a pool, or none. Goes back there with its end, also when the device has not reached it: a wait that has
/// been issued for it keeps what it waits for.
class Event {
 public:
  Event() = default;
  Event(Event&& o) noexcept { *this = std::move(o); }
  Event& operator=(Event&& o) noexcept {
    std::swap(pool_, o.pool_);
    std::swap(event_, o.event_);
    std::swap(timed_, o.timed_);
    return *this;
  }
  ~Event();
  explicit operator bool() const { return event_ != nullptr; }
  cudaEvent_t get() const { return event_; }

 private:
  friend class EventPool;
  EventPool* pool_ = nullptr;
  cudaEvent_t event_ = nullptr;
  bool timed_ = false;
};

/// Outlives its events. Thread-safe.
class EventPool {
 public:
  EventPool() = default;
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  /// Into `event`, one that takes times (`timed`), or a cheaper one. The GPU is the calling thread's.
  cudaError_t take(bool timed, Event& event);

 private:
  friend class Event;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_[2];  ///< guarded by mutex_; [1]: timed
};

}  // namespace troupe::cuda
