// ReadyQueue: which of the tasks that could run is next on a stream. One rule for CPU, paced and
// simulated streams, so that a schedule measured on one is the schedule on the others.
//
//   RQ-1  (runs) a task that continues the last run (same run, step and microbatch) goes first: a forward
//         chain that has begun reaches its send before anything else starts;
//   RQ-2  (priority) otherwise lower (priority, step, microbatch), then first come;
//   RQ-3  (urgency) a task of negative priority is urgent: it goes before any other and interrupts no run, which goes
//         on after it;
//   RQ-4  (turns) a task with a turn waits until all lower turns have been popped; tasks without a turn may overtake
//         it.
//
// Backward has a lower priority number than forward: with `stash slots = min(S - s, M)` that is 1F1B. Turns are how a
// plan writes other schedules down.
#pragma once

#include <optional>
#include <vector>

#include "devices/device.h"

namespace troupe {

/// Not thread-safe: its stream guards it.
class ReadyQueue {
 public:
  void push(Task task);
  /// Takes out the next task; none if the queue is empty or all its tasks wait for their turn.
  std::optional<Task> pop();
  bool empty() const { return tasks_.empty(); }
  std::size_t size() const { return tasks_.size(); }
  /// Takes out all tasks at once, in no order. Turns that have been popped stay so: the next task with a turn that pop
  /// returns has the lowest one that it has not returned yet.
  std::vector<Task> drop();

 private:
  struct Entry {
    Task task;
    std::uint64_t arrival;
  };
  std::vector<Entry> tasks_;
  std::uint64_t arrivals_ = 0;
  std::optional<TaskOrder> last_;
  std::int64_t next_turn_ = 0;
};

}  // namespace troupe
