// SimAlarm: the Alarm of a simulation: events of its loop.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "devices/base/alarm.h"
#include "devices/sim/sim_loop.h"

namespace troupe {

/// Owned by the simulation's thread; the loop outlives it.
class SimAlarm final : public Alarm {
 public:
  explicit SimAlarm(SimLoop& loop) : loop_(loop) {}
  ~SimAlarm() override { quiesce(); }
  SimAlarm(const SimAlarm&) = delete;
  SimAlarm& operator=(const SimAlarm&) = delete;

  const Clock& clock() const override { return loop_.clock(); }
  void at(std::int64_t due_ns, std::function<void()> fn) override {
    loop_.at(std::max(due_ns, loop_.now_ns()), [wanted = wanted_, fn = std::move(fn)] {
      if (*wanted) fn();
    });
  }
  void quiesce() override {
    *wanted_ = false;
    wanted_ = std::make_shared<bool>(true);
  }

 private:
  SimLoop& loop_;
  /// shared by the events since the last quiesce()
  std::shared_ptr<bool> wanted_ = std::make_shared<bool>(true);
};

}  // namespace troupe
