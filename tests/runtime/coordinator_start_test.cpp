// What a coordinator does about places that are lost, fail or wait before the job has begun.
#include "runtime/launch/hello.h"
#include "runtime/worker/act_watch.h"
#include "tests/runtime/three_places.h"

using namespace three_places;

TEST_CASE("a place that is lost before the first step comes back, and the job begins as it would have") {
  for (const int phase : {0, 1, 2}) {  // none has entered; all have; the others are ready
    CAPTURE(phase);
    ThreePlaces job;
    if (phase > 0)
      for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
    if (phase > 1)
      for (const Rank r : {0, 2}) job.hear(r, Ready{});
    job.all_hold({});
    job.down(1);
    CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
    CHECK(job.who<Abort>(3) == RankList{0, 2});
    job.leave({0, 2});
    CHECK(job.who<Enter>(3) == RankList{0, 1, 2});
    job.enter();
    CHECK(job.who<Connect>(3) == RankList{0, 1, 2});
    CHECK(job.last<Connect>().adopt == -1);
    CHECK(job.last<Connect>().restore == "checkpoint to begin from");
    CHECK(job.last<Connect>().home.areas.empty());
    CHECK(job.who<BeginRun>(3) == RankList{0, 1, 2});
    job.commit(0);
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].version == 0);
    CHECK(job.incidents[0].from == "checkpoint to begin from");
  }
}

TEST_CASE("a process that ends of itself with an error before the first step ends the job; later it is a loss") {
  for (const bool begun : {false, true}) {
    ThreePlaces job;
    if (begun) job.enter();
    job.ends(1, ProcessEnd::Kind::refused, "worker 1 exited with code 6");
    job.coordinator.turn(0);
    CHECK(job.coordinator.over() == !begun);
    if (!begun) CHECK(job.result().exit_code == exit_worker);
  }
}

TEST_CASE("what fails at the start ends the job at once, with its reason: it would fail again") {
  for (const auto& [status, code] : {std::pair(Status(Code::exhausted, "no memory"), exit_worker),
                                     std::pair(Status(Code::invalid, "another model"), exit_worker),
                                     std::pair(Status(Code::damaged, "a torn shard"), exit_checkpoint)}) {
    ThreePlaces job;
    job.hear(1, WorkerFailed{"", status});
    job.coordinator.turn(0);
    const JobResult r = job.result();
    CHECK(r.exit_code == code);
    CHECK(says(r.status, status.message()));
    CHECK(job.restarted.empty());
  }
}

TEST_CASE(
    "a checkpoint that is damaged ends the job at once, also in a later generation: the application knows another") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.down(1, 0, true);
  job.leave({0, 2});
  job.hear(0, WorkerFailed{"", Status(Code::damaged, "a torn shard")});
  job.coordinator.turn(0);
  CHECK(job.result().exit_code == exit_checkpoint);
}

TEST_CASE("a job that stalls before its first step ends with the report, as one that does not recover") {
  ThreePlaces job;
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  const std::int64_t second = 1000 * ms;
  for (std::int64_t now = 0; now <= 120 * second; now += second) {
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{0, false, {}, 0, {}}, now);
    job.coordinator.turn(now);
  }
  for (Rank r = 0; r < 3; ++r) job.hear(r, Explained{"waits for a shard\n"}, 120 * second);
  job.coordinator.turn(120 * second);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_stalled);
  CHECK(says(r.status, "waits for a shard"));
}

TEST_CASE("a process that takes long to start is not taken for silent before the first step") {
  ThreePlaces job;
  const std::int64_t second = 1000 * ms;
  for (std::int64_t now = 0; now < 60 * second; now += second) {
    for (const Rank r : {0, 2}) job.hear(r, Progress{now, false, {}, 0, {}}, now);
    job.coordinator.turn(now);
  }
  CHECK(job.killed.empty());
}

TEST_CASE("a place that ends again and again before the first step ends the job for good") {
  ThreePlaces job;
  for (int times = 0; times < 3; ++times) {
    REQUIRE_FALSE(job.coordinator.over());
    job.all_hold({});
    job.down(1);
    if (job.coordinator.over()) break;
    job.leave({0, 2});
    job.enter();
    job.hear(0, Progress{1, false, {}, 0, {}});
  }
  CHECK(job.result().exit_code == exit_do_not_requeue);
}

TEST_CASE("an act is stuck, a place silent, a link cut by the detect budget, however large: beats are a part of it") {
  for (const int budget_ms : {100, 2'000, 60'000, 600'000}) {
    JobOptions options;
    options.recovers = true;
    options.detect_budget_ms = budget_ms;
    const auto all = hellos(options, 2, {});
    REQUIRE(all.size() == 2);
    CHECK(all[1].beat_ms * ActWatch::beats_least <= budget_ms);
    CHECK(all[1].beat_ms * ActWatch::beats_least > budget_ms - ActWatch::beats_least);
  }
}

TEST_CASE("a place that says garbage before the first step ends the job") {
  ThreePlaces job;
  job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(job.killed.empty());
}
