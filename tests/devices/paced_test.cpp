#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "devices/paced/paced_device.h"

using namespace troupe;

namespace {

/// Milliseconds that each of `count` tasks of `cost_s` took, sorted.
std::vector<double> durations_ms(Device& device, int count, double cost_s, std::function<void(Parallel&)> work = {}) {
  auto stream = device.create_stream("paced", 1);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<double> ms;
  for (int i = 0; i < count; ++i) {
    Task t;
    t.cost_s = cost_s;
    t.work = work;
    t.on_done = [&](std::int64_t begin_ns, std::int64_t end_ns) {
      std::lock_guard lock(mutex);
      ms.push_back((end_ns - begin_ns) * 1e-6);
      changed.notify_one();
    };
    stream->submit(std::move(t));
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return static_cast<int>(ms.size()) == count; });
  std::sort(ms.begin(), ms.end());
  return ms;
}

}  // namespace

// The fastest of several: other jobs share this machine's cores.
TEST_CASE("a paced task takes its cost, never less, and runs no host function") {
  SteadyClock clock;
  PacedDevice device(clock);
  int ran = 0;
  const auto ms = durations_ms(device, 25, 2e-3, [&](Parallel&) { ++ran; });
  CHECK(ms.front() >= 2.0);
  CHECK(ms.front() < 2.5);
  CHECK(ran == 0);
}

TEST_CASE("scale stretches or shrinks every cost") {
  SteadyClock clock;
  PacedDevice device(clock, {.scale = 0.5});
  const auto ms = durations_ms(device, 15, 4e-3);
  CHECK(ms.front() >= 2.0);
  CHECK(ms.front() < 2.5);
}

TEST_CASE("run_work runs the host function within the task's time") {
  SteadyClock clock;
  PacedDevice device(clock, {.run_work = true});
  int ran = 0;
  const auto ms = durations_ms(device, 9, 3e-3, [&](Parallel&) {
    ++ran;
    for (const auto until = clock.now_ns() + 1'000'000; clock.now_ns() < until;) {}
  });
  CHECK(ran == 9);
  CHECK(ms.front() >= 3.0);
  CHECK(ms.front() < 3.8);  // not 1 + 3
}

TEST_CASE("many paced streams run side by side on few cores") {
  SteadyClock clock;
  PacedDevice device(clock);
  std::vector<std::unique_ptr<Stream>> streams;
  const auto begin = clock.now_ns();
  for (int s = 0; s < 16; ++s) {
    streams.push_back(device.create_stream("s" + std::to_string(s), 1));
    Task t;
    t.cost_s = 100e-3;
    std::mutex mutex;
    std::condition_variable changed;
    bool started = false;
    t.on_start = [&] {
      std::lock_guard lock(mutex);
      started = true;
      changed.notify_one();
    };
    streams.back()->submit(std::move(t));
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return started; });
  }
  for (auto& s : streams) s->quiesce();
  const double total_ms = (clock.now_ns() - begin) * 1e-6;
  CHECK(total_ms >= 100);
  CHECK(total_ms < 800);  // one after the other: 1600
}

namespace {

struct Span {
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// Two tasks, and what the stream reports of them. The first one's on_done takes 5 ms; it submits the second where that
/// does not wait from the start.
std::pair<Span, Span> one_after_the_other(Device& device, const Clock& clock, bool second_waits) {
  Span first, second;
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  auto stream = device.create_stream("s", 1);
  const auto submit_second = [&] {
    Task t;
    t.cost_s = 1e-3;
    t.order.microbatch = 1;
    t.on_done = [&](std::int64_t begin_ns, std::int64_t end_ns) {
      std::lock_guard lock(mutex);
      second = {begin_ns, end_ns};
      over = true;
      changed.notify_one();
    };
    stream->submit(std::move(t));
  };
  Task t;
  t.cost_s = 1e-3;
  t.on_start = [&] {
    if (second_waits) submit_second();
  };
  t.on_done = [&](std::int64_t begin_ns, std::int64_t end_ns) {
    first = {begin_ns, end_ns};
    for (const auto until = clock.now_ns() + 5'000'000; clock.now_ns() < until;) {}
    if (!second_waits) submit_second();
  };
  stream->submit(std::move(t));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return over; });
  return {first, second};
}

}  // namespace

TEST_CASE("a paced task that waited begins where the one before it ends, whatever the host did since") {
  SteadyClock clock;
  PacedDevice device(clock);
  const auto [first, second] = one_after_the_other(device, clock, true);
  CHECK(second.begin_ns == first.end_ns);
  CHECK(first.end_ns - first.begin_ns == 1'000'000);
  CHECK(second.end_ns - second.begin_ns == 1'000'000);
}

TEST_CASE("a paced task that is submitted after the end of the one before it begins when it is there") {
  SteadyClock clock;
  PacedDevice device(clock);
  const auto [first, second] = one_after_the_other(device, clock, false);
  CHECK(second.begin_ns >= first.end_ns + 5'000'000);
}
