#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "devices/cpu/thread_alarm.h"
#include "devices/sim/sim_alarm.h"

using namespace troupe;

TEST_CASE("an alarm runs everything by due time, then by order of calls, never early") {
  SteadyClock clock;
  ThreadAlarm alarm("alarm", clock);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> order;
  std::atomic<bool> all_set{false};
  alarm.at(0, [&] {  // until then nothing else runs
    while (!all_set) std::this_thread::yield();
  });
  const std::int64_t begin_ns = clock.now_ns() + 2'000'000;
  const auto note = [&](int which, std::int64_t due_ns) {
    alarm.at(due_ns, [&, which, due_ns] {
      CHECK(clock.now_ns() >= due_ns);
      std::lock_guard lock(mutex);
      order.push_back(which);
      changed.notify_one();
    });
  };
  note(3, begin_ns + 2'000'000);
  note(1, begin_ns);
  note(2, begin_ns);
  note(4, begin_ns + 2'000'000);
  note(0, 0);  // past: at once
  all_set = true;
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return order.size() == 5; });
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("an alarm that goes off may set the next one") {
  SteadyClock clock;
  ThreadAlarm alarm("alarm", clock);
  std::atomic<int> left{5};
  std::function<void()> again = [&] {
    if (--left > 0) alarm.at(clock.now_ns() + 100'000, again);
  };
  alarm.at(clock.now_ns(), again);
  while (left > 0) std::this_thread::yield();
  alarm.quiesce();
  CHECK(left == 0);
}

TEST_CASE("after quiesce nothing runs, also what the one that was running has set meanwhile") {
  SteadyClock clock;
  ThreadAlarm alarm("alarm", clock);
  std::atomic<int> begun{0};
  std::function<void()> again = [&] {
    ++begun;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    alarm.at(clock.now_ns(), again);
  };
  for (int round = 0; round < 50; ++round) {
    const int before = begun;
    alarm.at(clock.now_ns(), again);
    while (begun == before) std::this_thread::yield();
    alarm.quiesce();
    const int at_rest = begun;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    CHECK(begun == at_rest);
  }
}

TEST_CASE("quiesce forgets what waits, waits for what runs, and leaves the alarm usable") {
  SteadyClock clock;
  ThreadAlarm alarm("alarm", clock);
  // On a busy machine this thread may come too late to forget anything: then again, with more time.
  for (std::int64_t soon_ns = 50'000'000;; soon_ns *= 4) {
    std::atomic<bool> inside{false}, over{false}, late{false}, after{false};
    alarm.at(0, [&] {
      inside = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      over = true;
    });
    const std::int64_t due_ns = clock.now_ns() + soon_ns;
    alarm.at(due_ns, [&] { late = true; });
    while (!inside) std::this_thread::yield();
    alarm.quiesce();
    CHECK(over);
    const bool in_time = clock.now_ns() < due_ns;
    alarm.at(due_ns + 1, [&] { after = true; });
    while (!after) std::this_thread::yield();
    if (!in_time) continue;
    CHECK_FALSE(late);
    break;
  }
}

TEST_CASE("a simulated alarm keeps the same promises in virtual time") {
  SimLoop loop;
  SimAlarm alarm(loop);
  std::vector<std::int64_t> at_ns;
  const auto note = [&] { at_ns.push_back(loop.now_ns()); };
  alarm.at(300, note);
  alarm.at(100, [&] {
    note();
    alarm.at(50, note);  // past: at once
  });
  while (loop.run_one()) {}
  CHECK(at_ns == std::vector<std::int64_t>{100, 100, 300});
  alarm.at(400, note);
  alarm.quiesce();
  alarm.at(500, note);
  while (loop.run_one()) {}
  CHECK(at_ns == std::vector<std::int64_t>{100, 100, 300, 500});
}
