// ThreadStream: a stream that is one thread, for every device that lives in real time. How a task
// spends its time is a policy: the CPU device calls the host function, the paced device sleeps its cost.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "devices/cpu/thread_team.h"
#include "devices/ready_queue.h"

namespace troupe {

/// The next task is chosen when the thread is free, not when tasks arrive. Any thread may submit and
/// quiesce, except from this stream's callbacks (they may submit). Work must not throw.
class ThreadStream final : public Stream {
 public:
  /// Spends the time of a task that begins at begin_ns; returns when it ends.
  using Execute = std::function<std::int64_t(Task& task, Parallel& parallel, std::int64_t begin_ns)>;

  /// When the stream begins a task that it had been given before the task before it ended.
  enum class Begin {
    now,  ///< when its thread comes to it
    /// At that end, whatever the callbacks took since, but not before its thread came to the task before: a device that
    /// has two tasks at a time, of which it runs one.
    at_end_of_previous
  };

  /// `cores`: where to pin the stream's thread and its helpers; empty: nowhere.
  ThreadStream(std::string name, int threads, const Clock& clock, const std::vector<int>& cores, Begin begin,
               Execute execute);
  ~ThreadStream() override;
  ThreadStream(const ThreadStream&) = delete;
  ThreadStream& operator=(const ThreadStream&) = delete;

  const std::string& name() const override { return name_; }
  void submit(Task task) override;
  void quiesce() override;

 private:
  void run();

  const std::string name_;
  const Clock& clock_;
  const Begin begin_;
  const Execute execute_;
  ThreadTeam team_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  ReadyQueue queue_;  ///< guarded by mutex_, as the next three
  bool running_ = false;
  int quiescing_ = 0;
  bool stop_ = false;
  std::thread thread_;  ///< last: starts when all else exists
};

}  // namespace troupe
