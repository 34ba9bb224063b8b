// CudaStream: a stream of a GPU. One thread issues tasks, the device's poller completes them.
//
//   CS-1  (depth) at most `depth` tasks are in flight, from on_start to the end of on_done: the next one is chosen,
//         by the rule of ReadyQueue, when there are fewer;
//   CS-2  (issue) a task is issued whole, in the order in which tasks are chosen: its waits, its begin event, its work,
//         its fence, its end event;
//   CS-3  (completion) the poller calls the parts of Parallel::after, then on_done, when the event behind each is
//         reached, in the order of issue;
//   CS-4  (death) once the GPU is dead the stream issues nothing and calls nothing back; it forgets its tasks, those in
//         flight too, and quiesce returns.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "devices/cuda/gpu.h"
#include "devices/ready_queue.h"

namespace troupe::cuda {

/// Any thread may submit and quiesce, except that callbacks do not quiesce any stream of the same GPU. Work must not
/// throw.
class CudaStream final : public Stream, private Polled {
 public:
  CudaStream(std::string name, std::shared_ptr<Gpu> gpu);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  const std::string& name() const override { return name_; }
  void submit(Task task) override;
  void quiesce() override;

 private:
  class Work;
  struct Part {
    Event reached;
    std::function<void()> run;
  };
  /// A task in flight.
  struct Act {
    explicit Act(Task t) : task(std::move(t)) {}
    Task task;
    std::int64_t issue_ns = 0;  ///< its work began to be issued
    Event begin, end;
    std::deque<Part> parts;  ///< guarded by mutex_, as the next one
    bool issued = false;     ///< nothing of it is issued any more
  };

  void run();
  void issue(Act& act);
  void add_part(Act& act, std::function<void()> run);
  bool look() override;
  /// The device has done the first act, which the poller saw at seen_ns.
  void complete(std::int64_t seen_ns);
  bool forget_all();
  void forget(std::unique_lock<std::mutex>& lock, int acts);
  [[noreturn]] void end_process();

  const std::string name_;
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<IssuedLast> issued_last_;
  cudaStream_t queue_ = nullptr;
  std::atomic<bool> stopping_{false};

  // The poller's: where the device's time is on the Clock.
  Event anchor_;
  std::int64_t anchor_ns_ = 0;     ///< when anchor_ was reached
  std::int64_t last_end_ns_ = 0;   ///< of the act before
  std::int64_t not_ready_ns_ = 0;  ///< the end of the first act was not reached then; 0: not known

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  ReadyQueue waiting_;  ///< guarded by mutex_, as all that follow
  std::deque<std::unique_ptr<Act>> acts_;
  int in_flight_ = 0;  ///< acts_, and those whose callbacks run
  int quiescing_ = 0;
  bool stop_ = false;
  std::thread thread_;  ///< last: starts when all else exists
};

}  // namespace troupe::cuda
