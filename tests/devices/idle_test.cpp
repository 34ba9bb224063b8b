#include <doctest/doctest.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <thread>

#include "devices/cpu/cpu_device.h"
#include "tests/skip.h"

using namespace troupe;

namespace {

/// CPU time so far of each other thread of this process, by its number, in nanoseconds.
std::map<int, std::int64_t> cpu_of_others() {
  std::map<int, std::int64_t> times;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const int thread = std::stoi(entry.path().filename().string());
    timespec t;
    // MAKE_THREAD_CPUCLOCK(thread, CPUCLOCK_SCHED)
    const auto clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);
    if (thread != ::gettid() && ::clock_gettime(clock, &t) == 0) times[thread] = t.tv_sec * 1'000'000'000ll + t.tv_nsec;
  }
  return times;
}

}  // namespace

TEST_CASE("idle streams use no CPU") {
#ifdef __SANITIZE_THREAD__
  return test::skip("ThreadSanitizer has a thread of its own, which works");
#endif
  SteadyClock clock;
  CpuDevice device(clock);
  std::promise<void> done[4];  // outlive the streams, whose threads keep them
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(device.create_stream("idle", 4));
    Task t;  // idle after work, not only before
    t.work = [](Parallel& parallel) { parallel.for_each(100, [](std::int64_t) {}); };
    t.on_done = [&done = done[i]](std::int64_t, std::int64_t) { done.set_value(); };
    streams.back()->submit(std::move(t));
    done[i].get_future().wait();
  }
  std::map<int, std::int64_t> before, after;
  const auto look = [&](std::chrono::milliseconds window, int tries) {
    do {
      before = cpu_of_others();
      std::this_thread::sleep_for(window);
      after = cpu_of_others();
    } while (before != after && --tries > 0);
  };
  // Beside other work a thread may come to its sleep late.
  look(std::chrono::milliseconds(200), 50);
  CHECK(before.size() >= 4 * 4);
  CHECK(before == after);  // not a nanosecond
  // One that wakes up every second or so passes a short window, but never one that is longer than its sleep. A thread
  // that had waited for a core for all of the windows above comes to its sleep in the first of these.
  look(std::chrono::seconds(3), 5);
  CHECK(before == after);
}
