#include <doctest/doctest.h>

#include "devices/ready_queue.h"

using namespace troupe;

namespace {

Task task(const std::string& name, TaskOrder order) {
  Task t;
  t.name = name;
  t.order = order;
  return t;
}

std::string pop_all(ReadyQueue& queue) {
  std::string names;
  while (auto t = queue.pop()) names += (names.empty() ? "" : " ") + t->name;
  return names;
}

}  // namespace

TEST_CASE("RQ-1 (runs): a task that continues the last run goes first, even before a lower priority") {
  ReadyQueue queue;
  queue.push(task("F0a", {1, 0, 0, 7}));
  CHECK(queue.pop()->name == "F0a");
  queue.push(task("B0", {0, 0, 0, 8}));
  queue.push(task("F1a", {1, 0, 1, 7}));   // same run, other microbatch: does not continue
  queue.push(task("F0b'", {1, 1, 0, 7}));  // same run, other step: neither
  queue.push(task("F0b", {1, 0, 0, 7}));
  CHECK(pop_all(queue) == "F0b B0 F1a F0b'");
}

TEST_CASE("RQ-2 (priority): otherwise lower (priority, step, microbatch), then first come") {
  ReadyQueue queue;
  std::uint32_t run = 0;  // every task its own run
  queue.push(task("p1 s0 m1 first", {1, 0, 1, ++run}));
  queue.push(task("p1 s0 m1 second", {1, 0, 1, ++run}));
  queue.push(task("p1 s0 m0", {1, 0, 0, ++run}));
  queue.push(task("p0 s2 m0", {0, 2, 0, ++run}));
  queue.push(task("p0 s1 m9", {0, 1, 9, ++run}));
  queue.push(task("p-1 s5 m5", {-1, 5, 5, ++run}));
  for (const char* name : {"p-1 s5 m5", "p0 s1 m9", "p0 s2 m0", "p1 s0 m0", "p1 s0 m1 first", "p1 s0 m1 second"})
    CHECK(queue.pop()->name == name);
  CHECK_FALSE(queue.pop().has_value());
}

TEST_CASE("RQ-3 (urgency): an urgent task goes between two tasks of a run, which continues after it") {
  ReadyQueue queue;
  queue.push(task("F0a", {1, 0, 0, 7}));
  CHECK(queue.pop()->name == "F0a");
  queue.push(task("F0b", {1, 0, 0, 7}));
  queue.push(task("B9", {0, 0, 9, 8}));
  queue.push(task("U", {-1, 0, 5, 9}));
  queue.push(task("V", {-1, 0, 4, 9}));
  CHECK(pop_all(queue) == "V U F0b B9");
}

TEST_CASE("RQ-2: first come holds for many equal tasks, whatever was popped in between") {
  ReadyQueue queue;
  std::vector<std::string> popped;
  for (int i = 0; i < 10; ++i) queue.push(task(std::to_string(i), {0, 0, 0, 1}));
  for (int i = 0; i < 4; ++i) popped.push_back(queue.pop()->name);
  for (int i = 10; i < 15; ++i) queue.push(task(std::to_string(i), {0, 0, 0, 1}));
  while (auto t = queue.pop()) popped.push_back(t->name);
  REQUIRE(popped.size() == 15);
  for (int i = 0; i < 15; ++i) CHECK(popped[i] == std::to_string(i));
}

TEST_CASE("RQ-4 (turns): turns start in their order, tasks without one pass by, and a run that has begun goes on") {
  ReadyQueue queue;
  queue.push(task("turn 1", {0, 0, 0, 1, 1}));
  CHECK_FALSE(queue.pop().has_value());
  CHECK_FALSE(queue.empty());
  queue.push(task("any time", {9, 0, 0, 2}));
  CHECK(queue.pop()->name == "any time");
  queue.push(task("turn 2", {0, 0, 0, 3, 2}));
  queue.push(task("turn 0", {5, 0, 0, 1, 0}));
  CHECK(queue.pop()->name == "turn 0");
  CHECK(queue.pop()->name == "turn 1");
  queue.push(task("continues turn 1", {8, 0, 0, 1}));
  CHECK(pop_all(queue) == "continues turn 1 turn 2");
}

TEST_CASE("RQ-4: tasks that are dropped take no turn with them, and turns that have been popped are not due again") {
  ReadyQueue queue;
  queue.push(task("turn 0", {0, 0, 0, 1, 0}));
  queue.push(task("turn 1", {0, 0, 0, 2, 1}));
  queue.push(task("turn 2", {0, 0, 0, 3, 2}));
  CHECK(queue.pop()->name == "turn 0");
  CHECK(queue.drop().size() == 2);
  CHECK(queue.empty());
  CHECK_FALSE(queue.pop().has_value());
  queue.push(task("turn 2 again", {0, 0, 0, 3, 2}));
  CHECK_FALSE(queue.pop().has_value());
  queue.push(task("turn 1 again", {0, 0, 0, 2, 1}));
  CHECK(pop_all(queue) == "turn 1 again turn 2 again");
}
