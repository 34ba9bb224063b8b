// What a coordinator does that takes several messages before its turn: a loss among them counts for those behind it.
#include "tests/runtime/three_places.h"

using namespace three_places;

TEST_CASE(
    "a place that dies behind its goodbye is lost itself, and no other place for it, when the last goodbye comes") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  job.all_hold({3});
  job.down(0);
  job.leave({1});
  job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
  job.leave({2});
  CHECK(job.shapes.empty());  // the next turn recovers from the loss first
  job.coordinator.turn(0);
  CHECK(job.coordinator.generation().number == 4);
  CHECK(job.coordinator.available() == std::vector<PlaceId>{PlaceId{2}});
  job.leave({2});
  CHECK(job.shapes == std::vector<std::vector<PlaceId>>{{PlaceId{2}}});
  job.hear(2, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == 3);  // what the dead have left lies on their machine
  CHECK(job.killed.empty());
}

TEST_CASE("what a place has left that dies while others become ready is not forgotten with the last of them") {
  ThreePlaces job(nullptr, 1);
  job.do_three_steps();
  job.all_hold({3});
  job.down(1);
  job.leave({0, 2});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  for (const Rank r : {0, 1}) job.hear(r, Ready{});
  job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
  job.hear(2, Ready{});
  job.coordinator.turn(0);
  CHECK(job.coordinator.generation().number == 4);
  job.leave({0, 2});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == 3);  // a third of the moments is with place 1 alone
}

TEST_CASE("a place that dies before the others have an address is lost before a version is chosen") {
  ThreePlaces job(nullptr, 1);
  job.do_three_steps();
  job.all_hold({3});
  job.down(1);
  job.leave({0, 2});
  for (const Rank r : {0, 1}) job.hear(r, WorkerAddress{"a"});
  job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
  job.hear(2, WorkerAddress{"a"});
  CHECK(job.who<Connect>(3).empty());
  job.coordinator.turn(0);
  CHECK(job.coordinator.generation().number == 4);
}

TEST_CASE("a new plan does not settle with a vote that comes behind the loss of one of its places") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  job.all_hold({3});
  job.down(0);
  job.leave({1, 2});
  const Plan& plan = job.coordinator.plan();
  REQUIRE(plan.workers() == 2);
  for (const Rank place : {1, 2}) job.hear(place, WorkerAddress{"a"});
  for (const Rank place : {1, 2}) job.hear(place, Ready{});
  const auto vote = [&](Rank place) {
    const Rank r = job.coordinator.rank_of(PlaceId{place});
    Closed closed{plan.step_program, 3, {}, 0, planted_votes::told(plan, r, 1, 1e-3f)};
    if (r == 0) closed.reports.push_back({Report::Kind::loss, "loss", 3, 0, {1}});
    job.hear(place, closed);
  };
  vote(1);
  job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
  vote(2);
  CHECK(job.settled_ == 0);
  job.coordinator.turn(0);
  job.leave({2});
  job.hear(2, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == 3);  // from where it has lain
}

TEST_CASE(
    "a place that is lost with its machine before the first step ends a job that has no plan without it, at once") {
  ThreePlaces job;
  job.ends(1, ProcessEnd::Kind::lost, "worker 1 was lost with machine b");
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(r.status.message().find("worker 1 was lost with machine b") != std::string::npos);
  CHECK(job.restarted.empty());
}

TEST_CASE("a place that has a rank by now is not dismissed") {
  ThreePlaces job;
  job.coordinator.dismiss(PlaceId{1});
  CHECK(job.dismissed.empty());
  CHECK(job.coordinator.available().size() == 3);
}

TEST_CASE("a place that is to be killed later, and then says garbage, is killed at once") {
  ThreePlaces job;
  job.do_three_steps();
  job.hear(1, Progress{1, false, "in.x", 9000, {}});
  CHECK(job.killed.empty());
  job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
  CHECK(job.killed == RankList{1});
}

TEST_CASE("the memory of a place is not used that says garbage when another plan has no rank for it") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  ChosenPlan two{std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 1)), "dp=2", 0, {}};
  REQUIRE(job.coordinator.change(two, "asked", 0).ok());
  for (std::int64_t step = 3; step < 5; ++step) job.commit(step);  // those that have begun
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 5, {}, 0});
  job.coordinator.turn(0);
  job.all_hold({5});
  job.leave({0, 1, 2});
  REQUIRE(job.shapes.size() == 1);
  const auto& seated = job.shapes[0];
  for (const Rank place : {0, 1, 2})
    if (std::find(seated.begin(), seated.end(), PlaceId{place}) == seated.end()) {
      job.coordinator.distrust(PlaceId{place}, Status(Code::invalid, "garbage"), 0);
      CHECK(job.killed == RankList{place});
    }
  for (const PlaceId place : seated) job.hear(static_cast<Rank>(place), WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == -1);  // a third of the moments was there alone
}
