// How a coordinator ends a job that is asked to end, and recovers or waits (CR-6 grace).
#include "tests/runtime/three_places.h"

using namespace three_places;

TEST_CASE(
    "steps that are not done within the grace are left, and the job ends with the newest whole version (CR-6 grace)") {
  SavedBefore checkpoints;
  ThreePlaces job(&checkpoints);
  job.enter();
  for (const std::int64_t step : {0, 1, 2}) job.commit(step);
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
  const std::int64_t grace_ns = CoordinatorOptions().grace_ns;
  for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{1, true, {}, 0}, grace_ns - ms);
  job.coordinator.turn(grace_ns - 1);
  CHECK(job.coordinator.generation().number == 2);
  CHECK(job.coordinator.wakes_ns() == grace_ns);
  job.coordinator.turn(grace_ns);
  CHECK(job.who<Abort>(40) == RankList{0, 1, 2});
  job.all_hold({2, 3});
  job.leave({0, 1, 2});
  job.enter();
  CHECK(job.last<Connect>().adopt == 3);
  job.coordinator.turn(grace_ns + ms);
  CHECK(job.coordinator.generation().number == 40);  // it is not left again
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 3, {}, 0}, grace_ns);
  REQUIRE(job.coordinator.session().finished());
  for (Rank r = 0; r < 3; ++r) job.hear(r, Stopped{}, grace_ns);
  job.coordinator.turn(grace_ns);
  CHECK(job.told == std::vector<std::int64_t>{0, 1, 2});
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_interrupted);
  CHECK(says(r.status, "interrupted by Terminated after step 3 of 20"));
  REQUIRE(r.incidents.size() == 1);
  CHECK(r.incidents[0].cause == "steps that had begun were not done 20.0 s after the job was asked to end");
}

TEST_CASE("a job that is asked to end while it recovers ends with the version that it would have ended with") {
  SavedBefore checkpoints;
  ThreePlaces job(&checkpoints);
  job.enter();
  job.commit(0);
  job.all_hold({0, 1});
  job.down(1);
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.coordinator.pause().version() == 3);
  job.leave({0, 2});
  job.enter();
  job.commit(1);
  job.commit(2);
  CHECK(job.last<CommitStep>().step == 2);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 3, {}, 0});
  for (Rank r = 0; r < 3; ++r) job.hear(r, Stopped{});
  job.coordinator.turn(0);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_interrupted);
  CHECK(r.committed_steps == 3);
  CHECK(job.told == std::vector<std::int64_t>{0, 1, 2});
}

TEST_CASE("a job that ends early ends at once where a checkpoint is as new as what its places hold (CR-6 grace)") {
  for (const std::int64_t saved : {1, 2}) {
    CAPTURE(saved);
    SavedBefore checkpoints;
    ThreePlaces job(&checkpoints);
    job.enter();
    for (const std::int64_t step : {0, 1}) job.commit(step);
    checkpoints.saved = SavedVersion{"the newest", saved, {}};
    const std::int64_t grace_ns = CoordinatorOptions().grace_ns;
    job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
    job.hear(0, Progress{1, true, {}, 0}, grace_ns - ms);  // not silent
    for (Rank r : {1, 2}) job.hear(r, Progress{1, true, {}, 0}, grace_ns - ms);
    job.coordinator.turn(grace_ns);
    job.all_hold({2});
    job.leave({0, 1, 2});
    REQUIRE_FALSE(job.coordinator.over());
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"}, grace_ns);
    CHECK(job.coordinator.over() == (saved == 2));
    if (saved != 2) continue;
    const JobResult r = job.result();
    CHECK(r.exit_code == exit_interrupted);
    CHECK_MESSAGE(r.status.message().find("step 2") != std::string::npos, r.status.message());
    CHECK(r.committed_steps == 2);
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].ends);
    CHECK(job.incidents[0].from == "the newest");
  }
}

TEST_CASE("after the grace a place that does not leave is killed as soon as ever (CR-6 grace)") {
  SavedBefore checkpoints;
  const std::int64_t detect_ns = 8'000'000'000;
  ThreePlaces job(&checkpoints, 0, false, 3, detect_ns);
  job.enter();
  job.commit(0);
  const std::int64_t grace_ns = CoordinatorOptions().grace_ns;
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{1, true, {}, 0}, grace_ns - ms);
  job.coordinator.turn(grace_ns);
  job.coordinator.turn(grace_ns);
  for (Rank r : {0, 2}) job.hear(r, Quiesced{job.holds[r]}, grace_ns);
  job.coordinator.turn(grace_ns + CoordinatorWaits::least_ns - 1);
  CHECK(job.killed.empty());
  job.coordinator.turn(grace_ns + CoordinatorWaits::least_ns);
  CHECK(job.killed == RankList{1});
}

TEST_CASE("a job that ends early changes its plan no more") {
  SavedBefore checkpoints;
  ThreePlaces job(&checkpoints);
  job.enter();
  job.commit(0);
  ChosenPlan two{std::make_shared<const Plan>(ThreePlaces::make_plan(2, true, 0)), "dp=2", 0, {}};
  REQUIRE(job.coordinator.change(two, "asked", 0).ok());
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
  job.coordinator.turn(CoordinatorOptions().grace_ns);
  REQUIRE(job.coordinator.generation().number > 2);
  job.all_hold({1});
  job.leave({0, 1, 2});
  CHECK(job.shapes.empty());
}
