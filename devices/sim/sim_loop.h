// SimLoop: virtual time. Events run one by one, by (due time, phase, order of arrival); the clock
// jumps to each. A caller that also has actors drains their mailboxes between two events.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <tuple>

#include "devices/base/clock.h"

namespace troupe {

/// Owned by the simulation's one thread. Must outlive the objects that its events refer to.
class SimLoop {
 public:
  const Clock& clock() const { return clock_; }
  std::int64_t now_ns() const { return clock_.now_ns(); }

  /// Runs fn at due_ns. REQUIRES, here and below, a time that is not in the past.
  void at(std::int64_t due_ns, std::function<void()> fn) { add(due_ns, 0, std::move(fn)); }
  /// Runs fn at due_ns after every `at` event of that time, also those that are added meanwhile: how
  /// a decision waits until all that happens at its instant has happened.
  void at_end_of(std::int64_t due_ns, std::function<void()> fn) { add(due_ns, 1, std::move(fn)); }

  /// When the next event is due; empty: there is none.
  std::optional<std::int64_t> next_due_ns() const;
  /// Moves the clock to the next event and runs it. False: there is none.
  bool run_one();
  /// Sets the clock, and runs nothing. REQUIRES: no event is due before now_ns.
  void advance_to(std::int64_t now_ns);
  /// Runs every event due up to now_ns, then sets the clock to it. Returns the number of events.
  std::size_t run_due(std::int64_t now_ns);

 private:
  void add(std::int64_t due_ns, int phase, std::function<void()> fn);

  ManualClock clock_;
  std::uint64_t sequence_ = 0;
  std::map<std::tuple<std::int64_t, int, std::uint64_t>, std::function<void()>> events_;
};

}  // namespace troupe
