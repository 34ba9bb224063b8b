// When a coordinator gives a job up: incidents in a row, losses of one place, actors that fail again (CR-4 giving up).
#include "tests/runtime/three_places.h"

using namespace three_places;

TEST_CASE("a place that is lost for the third time in one incident ends the job for good (CR-4 giving up)") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  for (int times = 0; times < 2; ++times) {
    job.down(1);
    REQUIRE_FALSE(job.coordinator.over());
    job.leave({0, 2});
  }
  job.down(2);  // another one may still be lost
  REQUIRE_FALSE(job.coordinator.over());
  job.down(1);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_do_not_requeue);
  CHECK(r.status.message().find("worker 1 was lost 3 times without an act between them") != std::string::npos);
}

TEST_CASE("steps between incidents count from the version that the job went on from, also where that is an old one") {
  ThreePlaces job(nullptr, 1);
  job.enter();
  for (std::int64_t step = 0; step < 9; ++step) job.commit(step);
  job.all_hold({8, 9});
  job.down(1, 0, true);
  job.leave({0, 2});
  job.enter();  // from the beginning
  for (std::int64_t step = 0; step < 6; ++step) {
    job.commit(step);
    job.all_hold({step + 1});
    job.down(1);
    REQUIRE_FALSE(job.coordinator.over());
    job.leave({0, 2});
    job.enter();
    job.hear(0, Progress{step + 1, false, {}, 0});
  }
}

TEST_CASE("the third incident in a row without a step ends the job for good; a step in between begins the count anew") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  const auto incident = [&](const std::vector<std::int64_t>& held) {
    job.all_hold(held);
    job.down(1);
    if (job.coordinator.over()) return;
    job.leave({0, 2});
    job.enter();
    job.hear(0, Progress{1, false, {}, 0});
  };
  incident({0, 1});
  incident({0, 1});
  job.commit(1);
  incident({1, 2});
  incident({1, 2});
  CHECK_FALSE(job.coordinator.over());
  incident({1, 2});
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_do_not_requeue);
  CHECK(says(r.status, "3 incidents without a new step"));
  CHECK(says(r.status, "worker 1 was killed"));
  CHECK(r.incidents.size() == 5);
  CHECK(r.incidents.back().act_ns == -1);
}

TEST_CASE("steps that are only repeated do not begin the count of incidents anew (CR-4 giving up)") {
  for (const bool further : {false, true}) {
    CAPTURE(further);
    ThreePlaces job;
    job.enter();
    int incidents = 0;
    for (; incidents < 5 && !job.coordinator.over(); ++incidents) {
      for (std::int64_t step = 0; step < 3 + (further ? incidents : 0); ++step) job.commit(step);
      job.all_hold({});
      job.down(1);
      if (job.coordinator.over()) break;
      job.leave({0, 2});
      job.enter();  // nothing is whole: it goes back to its first version
      job.hear(0, Progress{1, false, {}, 0});
    }
    CHECK(incidents == (further ? 5 : 2));
    CHECK(job.coordinator.over() != further);
  }
}

TEST_CASE("an actor that fails is given another chance; one that fails at the same step again ends the job") {
  for (const bool same : {false, true}) {
    CAPTURE(same);
    ThreePlaces job;
    job.enter();
    job.commit(0);
    job.all_hold({0, 1});
    job.fail(1);
    CHECK(job.who<Abort>(3) == RankList{0, 1, 2});
    CHECK(job.restarted.empty());
    job.leave({0, 1, 2});
    job.enter();
    if (!same) job.commit(1);
    job.fail(1);
    CHECK(job.coordinator.over() == same);
    if (!same) continue;
    const JobResult r = job.result();
    CHECK(r.exit_code == exit_do_not_requeue);
    CHECK(says(r.status, "twice with 1 step done"));
    CHECK(says(r.status, "the tape is torn"));
  }
}

TEST_CASE("so many generations without an act end the job as there are places, and two more (CR-4 giving up)") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  int losses = 0;
  for (const Rank r : {0, 1, 2, 0, 1, 2, 0}) {
    if (job.coordinator.over()) break;
    ++losses;
    job.down(r);
    for (Rank other = 0; other < 3; ++other)
      if (other != r) job.leave({other});
  }
  CHECK(losses == 6);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_do_not_requeue);
  CHECK(r.status.message().find("5 generations without an act") != std::string::npos);
}

TEST_CASE("two actors that fail at one step, one after the other, are no actor that fails again (CR-4 giving up)") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  for (const char* actor : {"in.x", "in.y"}) {
    job.hear(1, WorkerFailed{actor, Status(Code::io, "the tape is torn")});
    job.coordinator.turn(0);
    REQUIRE_FALSE(job.coordinator.over());
    job.all_hold({1});
    job.leave({0, 1, 2});
    job.enter();
    job.hear(0, Progress{1, false, {}, 0});
  }
  CHECK_FALSE(job.coordinator.over());
}

TEST_CASE(
    "before the first step too so many generations end the job as there are places, and two more (CR-4 giving up)") {
  ThreePlaces job;
  int n = 0;
  for (; !job.coordinator.over() && n < 20; ++n) {
    job.down(static_cast<Rank>(n % 3));
    if (!job.coordinator.over()) job.leave({0, 1, 2});
  }
  CHECK(n == 6);
  CHECK(job.result().exit_code == exit_do_not_requeue);
}
