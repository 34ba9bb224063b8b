#include "devices/ready_queue.h"

#include <tuple>

namespace troupe {

void ReadyQueue::push(Task task) { tasks_.push_back({std::move(task), arrivals_++}); }

std::optional<Task> ReadyQueue::pop() {
  auto may_run = [&](const Entry& e) { return e.task.order.turn <= next_turn_; };
  auto key = [&](const Entry& e) {
    const TaskOrder& o = e.task.order;
    const bool continues = last_ && o.run == last_->run && o.step == last_->step && o.microbatch == last_->microbatch;
    return std::make_tuple(o.priority >= 0, !continues, o.priority, o.step, o.microbatch, e.arrival);
  };
  std::size_t best = tasks_.size();
  for (std::size_t i = 0; i < tasks_.size(); ++i)
    if (may_run(tasks_[i]) && (best == tasks_.size() || key(tasks_[i]) < key(tasks_[best]))) best = i;
  if (best == tasks_.size()) return std::nullopt;
  Task task = std::move(tasks_[best].task);
  if (best + 1 != tasks_.size()) tasks_[best] = std::move(tasks_.back());
  tasks_.pop_back();
  if (task.order.priority >= 0) last_ = task.order;
  if (task.order.turn >= 0) ++next_turn_;
  return task;
}

std::vector<Task> ReadyQueue::drop() {
  std::vector<Task> dropped;
  dropped.reserve(tasks_.size());
  for (Entry& e : tasks_) dropped.push_back(std::move(e.task));
  tasks_.clear();
  return dropped;
}

}  // namespace troupe
