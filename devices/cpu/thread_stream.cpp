#include "devices/cpu/thread_stream.h"

#include <algorithm>

#include "devices/base/check.h"
#include "devices/cpu/time_slice.h"

namespace troupe {

ThreadStream::ThreadStream(std::string name, int threads, const Clock& clock, const std::vector<int>& cores,
                           Begin begin, Execute execute)
    : name_(std::move(name)), clock_(clock), begin_(begin), execute_(std::move(execute)), team_(name_, threads, cores) {
  thread_ = std::thread([this, core = cores.empty() ? -1 : cores[0]] {
    set_up_thread(name_, core);
    set_time_slice(0);
    run();
  });
}

ThreadStream::~ThreadStream() {
  quiesce();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ThreadStream::submit(Task task) {
  {
    std::lock_guard lock(mutex_);
    if (quiescing_ > 0) return;
    if (begin_ == Begin::at_end_of_previous) task.submitted_ns = clock_.now_ns();
    queue_.push(std::move(task));
  }
  wake_.notify_one();
}

void ThreadStream::quiesce() {
  REQUIRE(std::this_thread::get_id() != thread_.get_id(), name_);  // it would wait for itself
  std::vector<Task> dropped;  // destroyed last, outside the lock: closures may own anything
  std::unique_lock lock(mutex_);
  ++quiescing_;  // submit() drops what callbacks of the running task submit: it would run after quiesce() had returned
  team_.set_stopping(true);
  dropped = queue_.drop();
  idle_.wait(lock, [&] { return !running_; });
  if (--quiescing_ == 0) team_.set_stopping(false);  // no task has begun meanwhile
  lock.unlock();
}

void ThreadStream::run() {
  std::int64_t came_ns = 0, end_ns = 0;  // when this thread came to the task before, and when that one ended
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<Task> task;
    wake_.wait(lock, [&] { return stop_ || (task = queue_.pop()); });
    if (!task) return;
    running_ = true;
    lock.unlock();
    if (task->on_start) task->on_start();  // may run actors, whose time is not the task's
    const std::int64_t now_ns = clock_.now_ns();
    const bool follows = begin_ == Begin::at_end_of_previous && task->submitted_ns < end_ns;
    const std::int64_t begin_ns = follows ? std::max(came_ns, end_ns) : now_ns;
    came_ns = now_ns;
    end_ns = execute_(*task, team_, begin_ns);
    if (task->on_done) task->on_done(begin_ns, end_ns);
    task.reset();  // destroys its closures before quiesce() returns
    lock.lock();
    running_ = false;
    idle_.notify_all();
  }
}

}  // namespace troupe
