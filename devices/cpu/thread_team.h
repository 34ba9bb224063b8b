// ThreadTeam: the stream's thread and its helpers share one loop. Helpers spin for some microseconds
// after a loop, because kernels come in bursts, then sleep: an idle team uses no CPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "devices/device.h"

namespace troupe {

/// Names the calling thread (15 characters reach the kernel) and, where core >= 0, pins it; best effort.
void set_up_thread(const std::string& name, int core);

/// REQUIRES that one thread at a time calls for_each, never from within its own body. After an exception of the body,
/// on any thread, no thread begins a new index; for_each throws the first exception once every helper has left the
/// loop.
class ThreadTeam final : public Parallel {
 public:
  /// `threads - 1` helpers called name/1, ...; helper i is pinned to cores[i] where there is one.
  ThreadTeam(const std::string& name, int threads, const std::vector<int>& cores);
  ~ThreadTeam() override;
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const override { return static_cast<int>(helpers_.size()) + 1; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override;
  bool stopping() const override { return stopping_.load(std::memory_order_relaxed); }
  /// Sets what stopping() says. No effect on for_each. From any thread.
  void set_stopping(bool stopping) { stopping_.store(stopping, std::memory_order_relaxed); }

 private:
  void help();
  void take_indices();

  std::mutex mutex_;
  std::condition_variable wake_, left_;
  bool open_ = false;  ///< a loop runs and helpers may still join it
  bool stop_ = false;
  int inside_ = 0;  ///< helpers in the loop; the caller returns when none is left
  int sleeping_ = 0;
  std::exception_ptr failure_;                               ///< the loop's first; guarded by mutex_
  const std::function<void(std::int64_t)>* body_ = nullptr;  ///< fixed while open_ or inside_ > 0
  std::int64_t n_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::uint64_t> round_{0};  ///< loops begun: what helpers watch while they spin
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace troupe
