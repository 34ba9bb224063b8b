#include "devices/cpu/thread_alarm.h"

#include <sys/prctl.h>

#include <chrono>

#include "devices/base/check.h"
#include "devices/cpu/thread_team.h"

namespace troupe {

ThreadAlarm::ThreadAlarm(std::string name, const Clock& clock) : clock_(clock) {
  thread_ = std::thread([this, name = std::move(name)] {
    set_up_thread(name, -1);
    // Timers of ordinary threads may be 50 us late to save power; timers of this thread may not.
    ::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    run();
  });
}

ThreadAlarm::~ThreadAlarm() {
  quiesce();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ThreadAlarm::at(std::int64_t due_ns, std::function<void()> fn) {
  bool earliest = false;
  {
    std::lock_guard lock(mutex_);
    if (quiescing_ > 0) return;
    const auto [it, fresh] = events_.emplace(std::pair(due_ns, sequence_++), std::move(fn));
    earliest = it == events_.begin();
  }
  if (earliest) wake_.notify_one();
}

void ThreadAlarm::quiesce() {
  REQUIRE(std::this_thread::get_id() != thread_.get_id());  // it would wait for itself
  Events dropped;  // destroyed last, outside the lock: closures may own anything
  std::unique_lock lock(mutex_);
  ++quiescing_;  // at() sets nothing meanwhile: a function that sets itself again would go on for ever
  std::swap(events_, dropped);
  idle_.wait(lock, [&] { return !running_; });
  --quiescing_;
  lock.unlock();
}

void ThreadAlarm::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (events_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const std::int64_t left_ns = events_.begin()->first.first - clock_.now_ns();
    if (left_ns > 0) {
      wake_.wait_for(lock, std::chrono::nanoseconds(left_ns));
      continue;
    }
    {
      auto event = events_.extract(events_.begin());
      running_ = true;
      lock.unlock();
      event.mapped()();
    }  // destroys the closure before quiesce() returns
    lock.lock();
    running_ = false;
    idle_.notify_all();
  }
}

}  // namespace troupe
