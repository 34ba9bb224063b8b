// How a coordinator goes on when places are on several machines.
#include "tests/runtime/three_places.h"

using namespace three_places;

namespace {

void do_three_steps(ThreePlaces& job) {
  job.enter();
  for (std::int64_t step = 0; step < 3; ++step) job.commit(step);
}

}  // namespace

TEST_CASE("on two machines a job goes on from the newest version that each place has itself") {
  ThreePlaces job;
  job.machines = {{2, 1}};
  do_three_steps(job);
  job.holds = {{0, Versions{2, 3}}, {1, Versions{2}}, {2, Versions{2, 3}}};
  job.down(1);
  job.leave({0, 2});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == 2);  // on one machine it is 3: place 1 takes it from the others
  CHECK(job.last<Connect>().home.areas.empty());
}

TEST_CASE("on two machines a place that has nothing takes the job back to its checkpoint, or to its beginning") {
  ThreePlaces job;
  job.machines = {{2, 1}};
  do_three_steps(job);
  job.holds = {{0, Versions{2, 3}}, {1, Versions{}}, {2, Versions{2, 3}}};
  job.down(1, 0, true);
  job.leave({0, 2});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == -1);
  CHECK(job.last<Connect>().restore == "checkpoint to begin from");
}

TEST_CASE("a machine is lost with its memory, and the job goes on from that of the machine that has all places then") {
  for (const bool redundant : {true, false}) {
    CAPTURE(redundant);
    ThreePlaces job(nullptr, redundant ? 0 : 1, true);
    job.machines = {{2, 1}};
    do_three_steps(job);
    job.all_hold({2, 3});
    job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine b");
    job.coordinator.turn(0);
    job.leave({0, 1});
    REQUIRE(job.coordinator.plan().workers() == 2);
    CHECK(job.restarted.empty());
    for (const Rank r : {0, 1}) job.hear(r, WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == (redundant ? 3 : -1));  // else place 2 alone had a third of the moments
    if (redundant) CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "of 1", ""});
  }
}

TEST_CASE("a machine that is lost while another plan is entered takes the state with it that lay there") {
  ThreePlaces job(nullptr, 1, true);
  job.machines = {{1, 1}, {2, 2}};
  do_three_steps(job);
  job.all_hold({3});
  job.down(0);
  job.leave({1, 2});
  REQUIRE(job.coordinator.plan().workers() == 2);
  job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine c");
  job.coordinator.turn(0);
  job.leave({1});
  job.hear(1, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == -1);
}

TEST_CASE("a lost machine ends a job that asks for no other shape, whatever its place was killed for") {
  for (const bool corrupt : {false, true}) {
    CAPTURE(corrupt);
    ThreePlaces job;
    do_three_steps(job);
    if (corrupt) {
      job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
      CHECK(job.killed == RankList{1});
    }
    job.ends(1, ProcessEnd::Kind::lost, "worker 1 was lost with machine b");
    const JobResult r = job.result();
    CHECK(r.exit_code == exit_worker);
    CHECK(r.status.message().find("a machine is lost") != std::string::npos);
    CHECK(job.restarted.empty());
  }
}
