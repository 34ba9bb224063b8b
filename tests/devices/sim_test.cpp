#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "devices/sim/sim_device.h"

using namespace troupe;

namespace {

/// Submits tasks and keeps a log of "name begin end", in the order of on_done.
struct Bench {
  SimLoop loop;
  SimDevice device{loop};
  std::unique_ptr<Stream> stream = device.create_stream("compute", 1);
  std::vector<std::string> log;

  void submit(Stream& to, const std::string& name, double cost_s, TaskOrder order = {}) {
    Task t;
    t.name = name;
    t.order = order;
    t.cost_s = cost_s;
    t.on_done = [this, name](std::int64_t begin_ns, std::int64_t end_ns) {
      log.push_back(name + " " + std::to_string(begin_ns) + " " + std::to_string(end_ns));
    };
    to.submit(std::move(t));
  }
  void submit(const std::string& name, double cost_s, TaskOrder order = {}) { submit(*stream, name, cost_s, order); }
  void run() {
    while (loop.run_one()) {}
  }
};

}  // namespace

TEST_CASE("SimLoop runs by (time, phase, order of arrival) and its clock jumps") {
  SimLoop loop;
  std::string order;
  loop.at(10, [&] { order += "c"; });
  loop.at_end_of(5, [&] { order += "b"; });
  loop.at(5, [&] {
    order += "a";
    loop.at(5, [&] { order += "A"; });  // still before the end of the instant
  });
  loop.at(10, [&] { order += "d"; });
  CHECK(loop.next_due_ns() == 5);
  CHECK(loop.run_due(4) == 0);
  CHECK(loop.now_ns() == 4);
  CHECK(loop.run_one());
  CHECK(loop.now_ns() == 5);
  CHECK(loop.run_due(7) == 2);
  CHECK(order == "aAb");
  CHECK(loop.now_ns() == 7);
  CHECK(loop.run_due(10) == 2);
  CHECK(order == "aAbcd");
  CHECK_FALSE(loop.run_one());
  CHECK_FALSE(loop.next_due_ns().has_value());
}

TEST_CASE("SD-1 (exact times): times are exact integers, however many tasks") {
  Bench bench;
  for (int i = 0; i < 1000; ++i) bench.submit("t", 0.1e-3);
  bench.run();
  REQUIRE(bench.log.size() == 1000);
  CHECK(bench.log.back() == "t 99900000 100000000");
  bench.submit("zero", 0);
  bench.submit("odd", 1.234567891);
  bench.run();
  CHECK(bench.log[1000] == "zero 100000000 100000000");
  CHECK(bench.log[1001] == "odd 100000000 1334567891");
}

TEST_CASE("SD-2 (end of instant): tasks submitted at one time compete by rule, not by order of the calls") {
  std::vector<TaskOrder> orders;
  for (int p = 0; p < 2; ++p)
    for (int m = 0; m < 3; ++m) orders.push_back({p, 0, m, static_cast<std::uint32_t>(orders.size())});
  std::vector<std::string> expected;
  std::vector<int> permutation = {0, 1, 2, 3, 4, 5};
  do {
    Bench bench;
    for (int i : permutation) bench.submit(std::to_string(i), 1e-6, orders[i]);
    CHECK(bench.log.empty());  // submit starts nothing
    bench.run();
    if (expected.empty()) expected = bench.log;
    REQUIRE(bench.log == expected);
  } while (std::next_permutation(permutation.begin(), permutation.end()));
  CHECK(expected.front() == "0 0 1000");
  CHECK(expected.back() == "5 5000 6000");
}

TEST_CASE("SD-2: what arrives at the very time a task ends still competes for what comes next") {
  Bench bench;
  bench.submit("F0", 10e-9, {1, 0, 0, 1});
  bench.submit("F1", 10e-9, {1, 0, 1, 1});
  bench.loop.at(5, [&] {  // added after F0's end (10) was: at 10 it runs second
    bench.loop.at(10, [&] { bench.loop.at(10, [&] { bench.submit("B0", 20e-9, {0, 0, 0, 2}); }); });
  });
  bench.run();
  CHECK(bench.log == std::vector<std::string>{"F0 0 10", "B0 10 30", "F1 30 40"});
}

TEST_CASE("SD-3 (work last): work runs at the task's end, between on_start at its begin and on_done") {
  SimLoop loop;
  SimDevice device(loop);
  auto stream = device.create_stream("compute", 8);
  std::vector<std::string> log;
  Task t;
  t.cost_s = 3e-9;
  t.on_start = [&] { log.push_back("start at " + std::to_string(loop.now_ns())); };
  t.work = [&](Parallel& parallel) {
    int sum = 0;
    parallel.for_each(4, [&](std::int64_t i) { sum += static_cast<int>(i); });
    log.push_back("work at " + std::to_string(loop.now_ns()) + ", " + std::to_string(parallel.threads()) + " thread, " +
                  std::to_string(sum));
  };
  t.on_done = [&](std::int64_t, std::int64_t) { log.push_back("done at " + std::to_string(loop.now_ns())); };
  stream->submit(std::move(t));
  while (loop.run_one()) {}
  CHECK(log == std::vector<std::string>{"start at 0", "work at 3, 1 thread, 6", "done at 3"});
}

TEST_CASE("SD-4 (dead device): a hung device starts nothing, completes nothing, calls nothing back") {
  Bench bench;
  bench.submit("before", 5e-9);
  bench.submit("during", 5e-9);
  bench.submit("after", 5e-9);
  bench.loop.at(7, [&] { bench.device.hang(); });
  bench.loop.at(20, [&] { bench.submit("late", 1e-9); });
  bench.run();
  CHECK(bench.log == std::vector<std::string>{"before 0 5"});
  bench.stream->quiesce();
  CHECK(bench.log.size() == 1);
}

TEST_CASE("SD-4: a dead device says so once, and allocates no more") {
  Bench bench;
  std::vector<std::string> deaths;
  bench.device.on_dead([&](const Status& s) { deaths.push_back(s.message()); });
  bench.submit("during", 5e-9);
  bench.loop.at(2, [&] { bench.device.die({Code::unavailable, "xid 79"}); });
  bench.loop.at(3, [&] { bench.device.die({Code::unavailable, "again"}); });
  bench.run();
  CHECK(bench.log.empty());
  CHECK(deaths == std::vector<std::string>{"xid 79"});
  CHECK(bench.device.allocate(1).status().message() == "xid 79");
}

TEST_CASE("SD-5 (paused device): what is due in a pause starts and completes at its end, in its order") {
  Bench bench;
  bench.submit("before", 5e-9);
  bench.submit("during", 5e-9);
  bench.submit("after", 5e-9);
  bench.loop.at(7, [&] { bench.device.pause_until(20); });
  bench.loop.at(8, [&] { bench.device.pause_until(15); });
  bench.loop.at(30, [&] { bench.device.pause_until(40); });
  bench.loop.at(31, [&] { bench.submit("late", 1e-9); });
  bench.run();
  CHECK(bench.log == std::vector<std::string>{"before 0 5", "during 5 20", "after 20 25", "late 40 41"});
}

TEST_CASE("sim quiesce ends the running task at once, drops the rest, and leaves the stream usable") {
  Bench bench;
  bench.submit("a", 10e-9);
  bench.submit("b", 10e-9);
  bench.loop.at(4, [&] {
    bench.stream->quiesce();
    CHECK(bench.log == std::vector<std::string>{"a 0 4"});
    bench.submit("c", 20e-9);  // its end, 24, is not disturbed by a's old one, 10
  });
  bench.run();
  CHECK(bench.log == std::vector<std::string>{"a 0 4", "c 4 24"});
}

TEST_CASE("sim quiesce: turns go on with the first that has not started") {
  Bench bench;
  bench.submit("turn 0", 10e-9, {0, 0, 0, 1, 0});
  bench.submit("turn 2", 10e-9, {0, 0, 0, 2, 2});  // waits for turn 1, and is forgotten
  bench.loop.at(4, [&] {
    bench.stream->quiesce();
    bench.submit("any time", 1e-9, {9, 0, 0, 3});
    bench.submit("turn 2 again", 10e-9, {0, 0, 0, 4, 2});
    bench.submit("turn 1", 10e-9, {5, 0, 0, 5, 1});
  });
  bench.run();
  CHECK(bench.log == std::vector<std::string>{"turn 0 0 4", "turn 1 4 14", "turn 2 again 14 24", "any time 24 25"});
}

TEST_CASE("a sim stream may go before the events it put into the loop") {
  Bench bench;
  bench.submit("never starts", 10e-9);
  bench.stream.reset();
  bench.run();
  CHECK(bench.log.empty());
}

TEST_CASE("simulated memory is bounded as configured, and given back") {
  SimLoop loop;
  SimDevice device(loop, 8192);
  auto a = device.allocate(8000);
  REQUIRE(a.ok());
  const auto b = device.allocate(4096);
  CHECK(b.status().code() == Code::exhausted);
  CHECK(b.status().message() == "cannot allocate 4096 bytes: the simulated device has 192 left");
  { const auto gone = *std::move(a); }
  CHECK(device.allocate(4096).ok());
}

TEST_CASE("the same submissions give the same log, on several streams with chains of tasks") {
  auto play = [](unsigned seed) {
    std::mt19937 random(seed);
    Bench bench;
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(bench.device.create_stream("s", 1));
    for (int i = 0; i < 200; ++i) {
      auto draw = [&](unsigned n) { return static_cast<std::int32_t>(random() % n); };
      const std::int64_t at = draw(50);
      const int to = draw(4), cost = draw(5);
      const TaskOrder order{draw(2), 0, draw(3), static_cast<std::uint32_t>(draw(3))};
      bench.loop.at(at, [&, i, to, cost, order] { bench.submit(*streams[to], std::to_string(i), cost * 1e-9, order); });
    }
    bench.run();
    return bench.log;
  };
  CHECK(play(1).size() == 200);
  CHECK(play(1) == play(1));
  CHECK(play(1) != play(2));
}
