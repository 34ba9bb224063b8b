#include "devices/cuda/events.h"

namespace troupe::cuda {

Event::~Event() {
  if (!event_) return;
  std::lock_guard lock(pool_->mutex_);
  pool_->free_[timed_].push_back(event_);
}

EventPool::~EventPool() {
  for (const auto& kind : free_)
    for (const cudaEvent_t event : kind) static_cast<void>(::cudaEventDestroy(event));  // a dead GPU refuses
}

cudaError_t EventPool::take(bool timed, Event& event) {
  Event taken;
  taken.pool_ = this;
  taken.timed_ = timed;
  {
    std::lock_guard lock(mutex_);
    if (auto& free = free_[timed]; !free.empty()) {
      taken.event_ = free.back();
      free.pop_back();
    }
  }
  if (!taken.event_) {
    const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    if (const cudaError_t error = ::cudaEventCreateWithFlags(&taken.event_, flags); error != cudaSuccess) {
      taken.event_ = nullptr;
      return error;
    }
  }
  event = std::move(taken);
  return cudaSuccess;
}

}  // namespace troupe::cuda
