#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>

#include "devices/cpu/cpu_device.h"
#include "devices/paced/paced_device.h"

using namespace troupe;

namespace {

/// Milliseconds that each of `count` tasks of `cost_s` took, sorted; none of them is reported before it has ended.
/// `late_ns`: lowered to the least time from a task's end to its callback.
std::vector<double> durations_ms(Device& device, const Clock& clock, int count, double cost_s,
                                 std::function<void(Parallel&)> work = {}, std::int64_t* late_ns = nullptr) {
  auto stream = device.create_stream("paced", 1);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<double> ms;
  int early = 0;
  for (int i = 0; i < count; ++i) {
    Task t;
    t.cost_s = cost_s;
    t.work = work;
    t.on_done = [&](std::int64_t begin_ns, std::int64_t end_ns) {
      std::lock_guard lock(mutex);
      ms.push_back((end_ns - begin_ns) * 1e-6);
      early += clock.now_ns() < end_ns;
      if (late_ns) *late_ns = std::min(*late_ns, clock.now_ns() - end_ns);
      changed.notify_one();
    };
    stream->submit(std::move(t));
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return static_cast<int>(ms.size()) == count; });
  CHECK(early == 0);
  std::sort(ms.begin(), ms.end());
  return ms;
}

}  // namespace

// The fastest of several: other jobs share this machine's cores.
TEST_CASE("a paced task takes its cost, never less, and runs no host function") {
  SteadyClock clock;
  PacedDevice device(clock);
  int ran = 0;
  std::int64_t late_ns = 1'000'000'000;
  const auto ms = durations_ms(
      device, clock, 25, 2e-3, [&](Parallel&) { ++ran; }, &late_ns);
  CHECK(late_ns < 500'000);
  CHECK(ms.front() >= 2.0);
  CHECK(ms.front() < 2.5);
  CHECK(ran == 0);
}

TEST_CASE("scale stretches or shrinks every cost") {
  SteadyClock clock;
  PacedDevice device(clock, {.scale = 0.5});
  const auto ms = durations_ms(device, clock, 15, 4e-3);
  CHECK(ms.front() >= 2.0);
  CHECK(ms.front() < 2.5);
}

TEST_CASE("run_work runs the host function within the task's time, and a task whose work is longer ends with it") {
  SteadyClock clock;
  PacedDevice device(clock, {.run_work = true});
  int ran = 0;
  const auto works = [&](std::int64_t ns) {
    return [&ran, &clock, ns](Parallel&) {
      ++ran;
      for (const auto until = clock.now_ns() + ns; clock.now_ns() < until;) {}
    };
  };
  double least_ms = 1e9;  // of several: other jobs share this machine's cores
  int batches = 0;
  for (; batches < 10 && least_ms >= 9 * 3.8; ++batches) {
    const auto begin_ns = clock.now_ns();
    CHECK(durations_ms(device, clock, 9, 3e-3, works(1'000'000)).front() >= 3.0);
    least_ms = std::min(least_ms, (clock.now_ns() - begin_ns) * 1e-6);
  }
  CHECK(ran == 9 * batches);
  CHECK(least_ms >= 9 * 3.0);
  CHECK(least_ms < 9 * 3.8);  // not 1 + 3 each
  CHECK(durations_ms(device, clock, 3, 1e-3, works(4'000'000)).front() >= 4.0);
}

TEST_CASE("quiesce ends the sleep of a paced task") {
  SteadyClock clock;
  PacedDevice device(clock);
  auto stream = device.create_stream("paced", 1);
  std::promise<void> started;
  std::int64_t end_ns = 0;
  Task t;
  t.cost_s = 30;
  t.on_start = [&] { started.set_value(); };
  t.on_done = [&](std::int64_t, std::int64_t ended_ns) { end_ns = ended_ns; };
  const auto begin_ns = clock.now_ns();
  stream->submit(std::move(t));
  started.get_future().wait();
  stream->quiesce();
  CHECK(clock.now_ns() - begin_ns < 20'000'000'000);
  CHECK(end_ns > 0);
  CHECK(end_ns <= clock.now_ns());
}

TEST_CASE("many paced streams run side by side on few cores") {
  SteadyClock clock;
  PacedDevice device(clock);
  std::vector<std::unique_ptr<Stream>> streams;
  std::mutex mutex;
  std::condition_variable changed;
  int over = 0;
  const auto begin = clock.now_ns();
  for (int s = 0; s < 16; ++s) {
    streams.push_back(device.create_stream("s" + std::to_string(s), 1));
    Task t;
    t.cost_s = 100e-3;
    t.on_done = [&](std::int64_t, std::int64_t) {
      std::lock_guard lock(mutex);
      ++over;
      changed.notify_one();
    };
    streams.back()->submit(std::move(t));
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return over == 16; });
  }
  for (auto& s : streams) s->quiesce();
  const double total_ms = (clock.now_ns() - begin) * 1e-6;
  CHECK(total_ms >= 100);
  CHECK(total_ms < 800);  // one after the other: 1600
}

namespace {

struct Span {
  std::int64_t begin_ns = 0, end_ns = 0, told_ns = 0;  // told: when on_done was called
};

/// Tasks of 1 ms, one after the other, and what the stream reports of them. The first one's on_done takes 5 ms, as each
/// one's on_start takes `start_ns`; all but the first are submitted by that on_done or, where they wait, by its
/// on_start.
std::vector<Span> one_after_the_other(Device& device, const Clock& clock, std::size_t count, bool they_wait,
                                      std::int64_t start_ns = 0) {
  std::vector<Span> spans;
  std::mutex mutex;
  std::condition_variable changed;
  auto stream = device.create_stream("s", 1);
  const auto pass = [&](std::int64_t ns) {
    for (const auto until = clock.now_ns() + ns; clock.now_ns() < until;) {}
  };
  const auto done = [&](std::int64_t begin_ns, std::int64_t end_ns) {
    std::lock_guard lock(mutex);
    spans.push_back({begin_ns, end_ns, clock.now_ns()});
    changed.notify_one();
  };
  const auto submit_others = [&] {
    for (std::size_t i = 1; i < count; ++i) {
      Task t;
      t.cost_s = 1e-3;
      t.order.microbatch = static_cast<std::int32_t>(i);
      t.on_start = [&] { pass(start_ns); };
      t.on_done = done;
      stream->submit(std::move(t));
    }
  };
  Task t;
  t.cost_s = 1e-3;
  t.on_start = [&] {
    if (they_wait) submit_others();
  };
  t.on_done = [&](std::int64_t begin_ns, std::int64_t end_ns) {
    done(begin_ns, end_ns);
    pass(5'000'000);
    if (!they_wait) submit_others();
  };
  stream->submit(std::move(t));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return spans.size() == count; });
  return spans;
}

}  // namespace

TEST_CASE(
    "a paced task that waited begins where the one before it ends, whatever the host did since, and ends in time") {
  SteadyClock clock;
  PacedDevice device(clock);
  double late_ms = 1e9;  // of several: other jobs share this machine's cores
  for (int i = 0; i < 20 && late_ms >= 0.8; ++i) {
    const auto spans = one_after_the_other(device, clock, 2, true);
    CHECK(spans[1].begin_ns == spans[0].end_ns);
    CHECK(spans[1].end_ns - spans[1].begin_ns == 1'000'000);
    late_ms = std::min(late_ms, (spans[1].told_ns - spans[0].told_ns) * 1e-6 - 5);
  }
  CHECK(late_ms < 0.8);  // its time had passed: it is not slept once more
}

TEST_CASE("a paced task begins no earlier than the host came to the one before it: of two at a time one waits") {
  SteadyClock clock;
  PacedDevice device(clock);
  const auto spans = one_after_the_other(device, clock, 3, true, 2'000'000);
  CHECK(spans[1].begin_ns == spans[0].end_ns);
  CHECK(spans[2].begin_ns >= spans[0].end_ns + 5'000'000);
  CHECK(spans[2].begin_ns >= spans[1].end_ns);
  CHECK(spans[2].begin_ns <= spans[1].told_ns);  // before its own on_start took 2 ms
}

TEST_CASE("a paced task that is submitted after the end of the one before it begins when it is there and has started") {
  SteadyClock clock;
  PacedDevice device(clock);
  const auto spans = one_after_the_other(device, clock, 2, false, 2'000'000);
  CHECK(spans[1].begin_ns >= spans[0].end_ns + 5'000'000 + 2'000'000);
}

TEST_CASE("a paced task that is submitted while the one before it runs begins where that one ends") {
  SteadyClock clock;
  PacedDevice device(clock);
  auto stream = device.create_stream("s", 1);
  std::mutex mutex;
  std::condition_variable changed;
  bool started = false;
  std::vector<Span> spans;
  const auto task = [&](double cost_s) {
    Task t;
    t.cost_s = cost_s;
    t.on_start = [&] {
      std::lock_guard lock(mutex);
      started = true;
      changed.notify_one();
    };
    t.on_done = [&](std::int64_t begin_ns, std::int64_t end_ns) {
      std::lock_guard lock(mutex);
      spans.push_back({begin_ns, end_ns});
      changed.notify_one();
    };
    return t;
  };
  stream->submit(task(300e-3));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return started; });
  lock.unlock();
  for (const auto until = clock.now_ns() + 2'000'000; clock.now_ns() < until;) {}
  stream->submit(task(1e-3));
  lock.lock();
  changed.wait(lock, [&] { return spans.size() == 2; });
  CHECK(spans[1].begin_ns == spans[0].end_ns);
}

TEST_CASE("on a CPU what the host does between two tasks is no part of either") {
  SteadyClock clock;
  CpuDevice device(clock);
  const auto spans = one_after_the_other(device, clock, 2, true);
  CHECK(spans[1].begin_ns >= spans[0].end_ns + 5'000'000);
}
