#include "devices/ready_queue.h"

#include <tuple>

namespace troupe {

void ReadyQueue::push(Task task) { tasks_.push_back({std::move(task), arrivals_++}); }

std::optional<Task> ReadyQueue::pop() {
  if (tasks_.empty()) return std::nullopt;
  auto key = [&](const Entry& e) {
    const TaskOrder& o = e.task.order;
    const bool continues =
        last_ && o.run == last_->run && o.step == last_->step && o.microbatch == last_->microbatch;
    return std::make_tuple(o.priority >= 0, !continues, o.priority, o.step, o.microbatch, e.arrival);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < tasks_.size(); ++i)
    if (key(tasks_[i]) < key(tasks_[best])) best = i;
  Task task = std::move(tasks_[best].task);
  if (best + 1 != tasks_.size()) tasks_[best] = std::move(tasks_.back());
  tasks_.pop_back();
  if (task.order.priority >= 0) last_ = task.order;
  return task;
}

}  // namespace troupe
