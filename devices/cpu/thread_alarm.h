// ThreadAlarm: the production Alarm. A thread that sleeps until the next function is due.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "devices/base/alarm.h"

namespace troupe {

/// A function runs some tens of microseconds late on a quiet machine, never early. REQUIRES that no function that the
/// alarm runs quiesces or destroys it.
class ThreadAlarm final : public Alarm {
 public:
  /// `clock` is in real time and outlives the alarm.
  ThreadAlarm(std::string name, const Clock& clock);
  ~ThreadAlarm() override;
  ThreadAlarm(const ThreadAlarm&) = delete;
  ThreadAlarm& operator=(const ThreadAlarm&) = delete;

  const Clock& clock() const override { return clock_; }
  void at(std::int64_t due_ns, std::function<void()> fn) override;
  void quiesce() override;

 private:
  /// by (due, sequence)
  using Events = std::map<std::pair<std::int64_t, std::uint64_t>, std::function<void()>>;
  void run();

  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Events events_;  ///< guarded by mutex_, as the next three
  std::uint64_t sequence_ = 0;
  bool running_ = false;
  int quiescing_ = 0;
  bool stop_ = false;
  std::thread thread_;  ///< last: starts when all else exists
};

}  // namespace troupe
