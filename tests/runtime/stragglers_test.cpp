// Stragglers: which of a job's places compute far longer than they should.
#include "runtime/elastic/stragglers.h"

#include <doctest/doctest.h>

#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

constexpr std::int64_t ms = 1'000'000;

/// A job whose places say how long they computed.
struct Steps {
  explicit Steps(const StageWidths& dp) : plan(plan_of(dp)), stragglers(plan) {}
  static Plan plan_of(const StageWidths& dp) {
    CompileOptions o;
    o.stages = stage_meshes(dp);
    auto p = compile(mlp::graph(ops(), {}), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    return *std::move(p);
  }
  /// `n` steps of a second each in which rank r computes so many tenths of it.
  void steps(int n, const std::vector<double>& tenths) {
    for (int i = 0; i < n; ++i) {
      now += step_ms * ms;
      for (Rank r = 0; r < plan.workers(); ++r)
        for (const auto& c :
             stragglers.voted(r, static_cast<std::int64_t>(tenths[static_cast<std::size_t>(r)] * 100 * ms), now))
          changes.push_back(c);
    }
  }
  Plan plan;
  Stragglers stragglers;
  std::int64_t now = 0, step_ms = 1000;
  std::vector<Stragglers::Change> changes;
};

}  // namespace

TEST_CASE(
    "a replica that computes three times as long as the others is named once, from the first window on (SG-1 peers)") {
  Steps job({4});
  job.steps(12, {3, 3, 9, 3});
  CHECK(job.changes.empty());
  job.steps(1, {3, 3, 9, 3});
  CHECK(job.changes.size() == 1);
  job.steps(30, {3, 3, 9, 3});
  REQUIRE(job.changes.size() == 1);
  CHECK(job.changes[0].rank == 2);
  CHECK(job.changes[0].times == doctest::Approx(3));
  CHECK_FALSE(job.changes[0].over);
  for (Rank r = 0; r < 4; ++r) CHECK(job.stragglers.is_slow(r) == (r == 2));
  CHECK(job.stragglers.times(2) == doctest::Approx(3));
  CHECK(job.stragglers.times(0) == doctest::Approx(1));
}

TEST_CASE("of two replicas the slow one is named, not the fast one") {
  for (const Rank slow : {0, 1}) {
    Steps job({2});
    std::vector<double> busy(2, 3);
    busy[static_cast<std::size_t>(slow)] = 9;
    job.steps(30, busy);
    REQUIRE(job.changes.size() == 1);
    CHECK(job.changes[0].rank == slow);
  }
}

TEST_CASE(
    "the only place of a stage is named by its own first steps, and no stage that has more to do (SG-2 history)") {
  Steps job({1, 1, 1});
  job.steps(30, {1, 3, 2});
  CHECK(job.changes.empty());
  job.steps(7, {1, 9, 2});
  CHECK(job.changes.empty());
  job.steps(1, {1, 9, 2});
  REQUIRE(job.changes.size() == 1);
  CHECK(job.changes[0].rank == 1);
  CHECK(job.changes[0].times == doctest::Approx(3));
}

TEST_CASE("what slows all places down names none; a worker alone is compared with none") {
  Steps job({2, 1});
  job.steps(20, {2, 2, 2});
  job.steps(20, {9, 9, 9});
  CHECK(job.changes.empty());
  Steps alone({1});
  alone.steps(20, {1});
  alone.steps(20, {9});
  CHECK(alone.changes.empty());
}

TEST_CASE("a few slow steps name none, and a place that is slow no more is told of (SG-3 window)") {
  Steps job({2});
  job.steps(20, {4, 4});
  job.step_ms = 500;
  job.steps(7, {4, 9});  // the median is slow for six steps: less than three seconds
  job.steps(20, {4, 4});
  job.step_ms = 1000;
  CHECK(job.changes.empty());
  job.steps(10, {4, 9});
  REQUIRE(job.changes.size() == 1);
  job.steps(20, {4, 7});  // between the two limits: as it was
  CHECK(job.changes.size() == 1);
  job.steps(10, {4, 5});
  REQUIRE(job.changes.size() == 2);
  CHECK(job.changes[1].rank == 1);
  CHECK(job.changes[1].over);
  CHECK(job.changes[1].times == doctest::Approx(1.25));
  CHECK_FALSE(job.stragglers.is_slow(1));
}

TEST_CASE("a place that has little to do may take long over it: no step is longer for it") {
  Steps job({2});
  job.steps(30, {0.2, 0.9});
  CHECK(job.changes.empty());
}

TEST_CASE("the first steps, which touch memory for the first time, do not count") {
  Steps job({1, 1});
  job.steps(2, {9, 9});
  job.steps(20, {3, 3});
  CHECK(job.stragglers.times(0) == doctest::Approx(1));
  CHECK(job.changes.empty());
}

TEST_CASE("places with more microbatches of a step are measured by the microbatch") {
  Steps job({3});  // 8 microbatches: 3, 3, 2
  job.steps(30, {6, 6, 4});
  CHECK(job.stragglers.times(2) == doctest::Approx(1));
  CHECK(job.stragglers.times(0) == doctest::Approx(1));
}

TEST_CASE(
    "one that was named in a generation before is not named again in the next one, and is told of once it is slow no "
    "more, also where it is alone in its stage") {
  for (const StageWidths& dp : {StageWidths{2}, StageWidths{1, 1}}) {
    Steps job(dp);
    job.steps(12, {3, 3});
    job.steps(12, {3, 9});
    CHECK(job.changes.size() == 1);
    job.stragglers.begin_generation();
    CHECK(job.stragglers.is_slow(1));
    job.steps(20, {3, 9});
    CHECK(job.changes.size() == 1);
    job.steps(15, {3, 3});
    REQUIRE(job.changes.size() == 2);
    CHECK(job.changes[1].rank == 1);
    CHECK(job.changes[1].over);
  }
}

TEST_CASE("a new process in a place begins without a name, and with a history of its own") {
  Steps job({1, 1});
  job.steps(12, {3, 3});
  job.steps(12, {3, 9});
  CHECK(job.stragglers.is_slow(1));
  job.stragglers.begin_generation();
  CHECK(job.stragglers.forget(1));
  CHECK_FALSE(job.stragglers.is_slow(1));
  job.steps(30, {3, 9});
  CHECK(job.changes.size() == 1);
  CHECK(job.stragglers.times(1) == doctest::Approx(1));
}

TEST_CASE("what a place loses counts for all its microbatches of a step") {
  Steps job({2});  // four each
  job.steps(30, {1, 3});
  REQUIRE(job.changes.size() == 1);
  CHECK(job.changes[0].rank == 1);
}
