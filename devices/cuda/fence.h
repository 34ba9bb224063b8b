// CudaFence: an event that a stream records behind a task's work. It is named, and waited for, before it is recorded:
// a task that waits may be submitted when on_start of the other one is called.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "devices/cuda/gpu.h"

namespace troupe::cuda {

class CudaFence final : public Fence {
 public:
  explicit CudaFence(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  const Gpu* gpu() const { return gpu_.get(); }
  /// Its stream has chosen the task. False: it is a second task's.
  bool begin() {
    State expected = State::unused;
    return state_.compare_exchange_strong(expected, State::begun);
  }
  bool begun() const { return state_.load() != State::unused; }
  /// `event` has been recorded behind the task's work; none: the GPU is dead.
  void end(Event event) {
    event_ = std::move(event);
    state_.store(State::ended);
    state_.notify_all();
  }
  /// What to wait for; null where the GPU is dead. Waits while the task's work is being issued. REQUIRES begun().
  cudaEvent_t event() const {
    state_.wait(State::begun);
    return event_.get();
  }

 private:
  enum class State { unused, begun, ended };
  const std::shared_ptr<Gpu> gpu_;  ///< before event_, which goes back to its pool
  Event event_;                     ///< written before State::ended
  std::atomic<State> state_{State::unused};
};

}  // namespace troupe::cuda
