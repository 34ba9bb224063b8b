// The one thread that calls UCX: it executes commands, makes progress, and sleeps when there is nothing to do.
//
// Asleep it polls two descriptors: the armed worker's, and an eventfd that the first command for a
// sleeping thread signals. Submitting and deciding to sleep happen under one mutex: no command is missed.
//
// The inbox and the flags are shared under `mutex_`; the progress thread owns all else that its loop touches.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/ucx/commands.h"
#include "comm/ucx/ucx_worker.h"

namespace troupe::comm::ucx {

/// The transport behind a progress thread; called on that thread only.
class ProgressClient {
 public:
  virtual void execute(Command& command) = 0;
  /// Between two calls into UCX: handles what its callbacks have found.
  virtual void handle_failures() = 0;
  /// Whether handle_failures() has something to do.
  virtual bool any_failed() const = 0;
  /// The last thing the thread does.
  virtual void wind_down() = 0;

 protected:
  ~ProgressClient() = default;
};

class ProgressThread {
 public:
  ProgressThread(ProgressClient& client, Worker& worker, std::int64_t spin_us)
      : client_(client), worker_(worker), spin_us_(spin_us) {}
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  Status start();
  /// From any thread. After shutdown() commands are ignored.
  void submit(Command command);
  /// Winds down and joins; drops commands that were submitted and not executed. Idempotent. REQUIRES any thread but the
  /// progress thread.
  void shutdown();
  /// CPU time used so far. From any thread.
  std::int64_t cpu_ns();

 private:
  void run();
  bool drain();
  bool spin();
  void sleep();
  void wake();

  ProgressClient& client_;
  Worker& worker_;
  const std::int64_t spin_us_;
  int wake_fd_ = -1;

  std::mutex mutex_;
  std::vector<Command> commands_;     ///< guarded by mutex_
  bool asleep_ = false;               ///< guarded by mutex_
  bool stop_ = false;                 ///< guarded by mutex_
  bool closed_ = false;               ///< guarded by mutex_: commands are ignored
  std::atomic<bool> pending_{false};  ///< commands or stop: a hint for the progress loop

  std::mutex join_mutex_;
  std::thread thread_;  ///< guarded by join_mutex_
  std::atomic<std::int64_t> cpu_ns_at_end_{-1};
};

}  // namespace troupe::comm::ucx
