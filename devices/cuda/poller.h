// Poller: the thread that learns what a GPU has done. Events are asked one after the other: 2 us late, where a
// function that the driver calls on the host comes 37 us late (docs/measurements/2026-11-26-gpu-facts.md).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace troupe::cuda {

/// What a poller looks at.
class Polled {
 public:
  virtual ~Polled() = default;
  /// Completes what is done, and returns whether anything was. Called by the poller's thread only.
  virtual bool look() = 0;
};

/// Uses one core while something is expected, none otherwise.
class Poller {
 public:
  /// The thread calls `set_up` first.
  Poller(std::string name, std::function<void()> set_up);
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// What was added first is looked at first.
  void add(Polled& polled);
  /// Returns when the poller is not looking at it and never will. REQUIRES another thread than the poller's.
  void remove(Polled& polled);
  /// One more thing is under way, or one fewer: the poller looks as long as there are any. Thread-safe.
  void expect();
  void found() { expected_.fetch_sub(1, std::memory_order_release); }
  bool is_this_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void run();

  std::atomic<int> expected_{0};
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::vector<Polled*> polled_;  ///< guarded by mutex_, as the next two
  Polled* looked_at_ = nullptr;
  bool stop_ = false;
  std::thread thread_;  ///< last: starts when all else exists
};

}  // namespace troupe::cuda
