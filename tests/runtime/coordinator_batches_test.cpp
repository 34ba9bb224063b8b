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
  job.hear_in_batch(2, Quiesced{job.holds[2]});
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
  job.hear_in_batch(2, Ready{});
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
  job.hear_in_batch(2, WorkerAddress{"a"});
  job.coordinator.turn(0);
  CHECK(job.who<Connect>(3).empty());
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
    Closed closed{plan.step_program(), 3, {}, 0, planted_votes::told(plan, r, 1, 1e-3f)};
    if (r == 0) closed.reports.push_back({Report::Kind::loss, "loss", 3, 0, {1}});
    job.hear_in_batch(place, closed);
  };
  vote(1);
  job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
  vote(2);
  job.coordinator.turn(0);
  CHECK(job.settled_ == 0);
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

TEST_CASE("a place that dies before the last of the results, in one batch with it, ends no job") {
  ThreePlaces job;
  job.enter();
  for (std::int64_t step = 0; step < 20; ++step) job.commit(step);
  const Closed digest{job.p.program("digest"), 20, {}, 0};
  for (const Rank r : {0, 1}) job.hear(r, digest);
  job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
  job.hear_in_batch(2, digest);
  job.coordinator.turn(0);
  CHECK(job.coordinator.generation().number == 2);
  for (const Rank r : {0, 2}) job.hear(r, Stopped{});
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_ok);
  CHECK(r.incidents.empty());
  CHECK(job.restarted.empty());
}

TEST_CASE("a place that fails behind the last that becomes ready is lost in a job that has started") {
  for (const bool says_why : {false, true}) {
    CAPTURE(says_why);
    ThreePlaces job;
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
    for (Rank r = 0; r < 3; ++r) job.hear_in_batch(r, Ready{});
    if (says_why) job.hear_in_batch(1, WorkerFailed{"in.x", Status(Code::io, "the tape is torn")});
    else job.ends(1, ProcessEnd::Kind::refused, "worker 1 has ended with code 6");
    job.coordinator.turn(0);
    CHECK_FALSE(job.coordinator.over());
    CHECK(job.coordinator.generation().number == 3);
  }
}

TEST_CASE("a place that is told to be lost twice in one batch is lost once") {
  ThreePlaces job(nullptr, 0, true);
  job.do_three_steps();
  job.all_hold({3});
  job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
  job.ends(1, ProcessEnd::Kind::lost, "worker 1 was lost with machine b");
  job.coordinator.turn(0);
  job.leave({0, 2});
  for (const Rank r : {0, 2}) job.hear(r, WorkerAddress{"a"});
  for (const Rank r : {0, 2}) job.hear(r, Ready{});
  job.hear(0, Progress{8, false, {}, 0, {}});
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].lost == std::vector<std::int32_t>{1});
  CHECK(job.dismissed == RankList{1});  // its machine has room for another
}

TEST_CASE("nothing counts that a place says behind garbage") {
  ThreePlaces job(nullptr, 1);
  job.do_three_steps();
  job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
  for (Rank r = 0; r < 3; ++r) job.hear(r, job.vote_of(r, 3));
  CHECK(job.coordinator.committed() == 3);
}

TEST_CASE("a place that tells of a run that has not begun is killed, and its memory not used") {
  ThreePlaces job(nullptr, 1);
  job.do_three_steps();
  job.all_hold({3});
  job.down(0);
  job.hear(2, job.vote_of(2, 3));
  CHECK(job.coordinator.committed() == 3);
  CHECK(job.killed == RankList{2});
}

TEST_CASE("a spare that says garbage before the first step ends no job") {
  ThreePlaces job;
  job.coordinator.add_place(PlaceId{3}, 0);
  job.coordinator.distrust(PlaceId{3}, Status(Code::invalid, "garbage"), 0);
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.killed == RankList{3});
}

TEST_CASE("a place that is to be killed later, and has not left its generation in time, is killed at once") {
  ThreePlaces job(nullptr, 0, false, 3, 460 * ms);
  job.do_three_steps();
  job.all_hold({3});
  job.down(2);
  job.coordinator.turn(0);
  for (const Rank r : {0, 1}) job.hear_in_batch(r, Progress{0, false, {}, 0, {}}, ms);
  job.hear_in_batch(0, Quiesced{Versions{3}}, 400 * ms);
  job.coordinator.turn(462 * ms);  // place 1 is silent, and the others are asked what they wait for
  CHECK(job.killed.empty());
  job.coordinator.turn(CoordinatorWaits::least_ns);
  CHECK(job.killed == RankList{1});
}

TEST_CASE("a coordinator that was stopped does not take a place for lost that it has killed just before") {
  ThreePlaces job(nullptr, 0, true);
  const CoordinatorWaits waits(CoordinatorOptions().detect_ns);
  job.do_three_steps();
  job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
  job.coordinator.resumed_after_stop(2 * waits.killed_ns);
  for (const Rank r : {0, 2}) job.hear(r, Progress{8, false, {}, 0, {}}, 2 * waits.killed_ns);
  CHECK(job.coordinator.generation().number == 2);
}

namespace {

/// When a place says garbage that has no rank in the plan that is entered.
enum class Garbage { never, before_it_leaves, with_the_last_goodbye };

/// A job of three places that goes on with two of them, as asked; returns the place that has no rank then.
Rank goes_on_with_two(ThreePlaces& job, Garbage garbage = Garbage::never) {
  job.do_three_steps();
  ChosenPlan two{std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 1)), "dp=2", 0, {}};
  REQUIRE(job.coordinator.change(two, "asked", 0).ok());
  for (std::int64_t step = 3; step < 5; ++step) job.commit(step);  // those that have begun
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 5, {}, 0});
  job.coordinator.turn(0);
  job.all_hold({5});
  const Rank spare = 1;
  job.leave({0, 2});
  const auto says_garbage = [&] { job.coordinator.distrust(PlaceId{spare}, Status(Code::invalid, "garbage"), 0); };
  if (garbage == Garbage::before_it_leaves) says_garbage();
  job.hear_in_batch(spare, Quiesced{job.holds[spare]});
  if (garbage == Garbage::with_the_last_goodbye) says_garbage();
  job.coordinator.turn(0);
  return spare;
}

}  // namespace

TEST_CASE(
    "the memory of a place that says garbage is not used, though it says that it leaves its generation behind it") {
  ThreePlaces job(nullptr, 1, true);
  const Rank spare = goes_on_with_two(job, Garbage::before_it_leaves);
  CHECK(job.shapes.empty());  // its end is waited for
  job.down(spare);
  job.leave({0, 2});
  REQUIRE(job.shapes.size() == 1);
  for (const PlaceId place : job.shapes[0]) job.hear(static_cast<Rank>(place), WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == -1);  // a third of the moments was there alone
}

TEST_CASE("the end of a place without a rank, whose memory was not used, takes the job to no other generation") {
  for (const Garbage garbage : {Garbage::never, Garbage::with_the_last_goodbye}) {
    ThreePlaces job(nullptr, 1, true);
    const Rank spare = goes_on_with_two(job, garbage);
    REQUIRE(job.coordinator.rank_of(PlaceId{spare}) == -1);
    if (garbage == Garbage::never) job.coordinator.distrust(PlaceId{spare}, Status(Code::invalid, "garbage"), 0);
    for (const Rank r : {0, 2}) job.hear(r, WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == -1);
    job.ends(spare, ProcessEnd::Kind::suspect, "worker 1 was killed by signal 11");
    job.coordinator.turn(0);
    CHECK(job.coordinator.generation().number == 3);
  }
}

TEST_CASE("a place without a rank from which others may have taken state is lost when its memory is not to be used") {
  for (const bool says : {false, true}) {
    CAPTURE(says);
    ThreePlaces job(nullptr, 1, true);
    const Rank spare = goes_on_with_two(job);
    REQUIRE(job.coordinator.rank_of(PlaceId{spare}) == -1);
    for (const Rank r : {0, 2}) job.hear(r, WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == 5);
    if (says) job.coordinator.distrust(PlaceId{spare}, Status(Code::invalid, "garbage"), 0);
    else job.ends(spare, ProcessEnd::Kind::suspect, "worker 1 was killed by signal 11");
    job.coordinator.turn(0);
    CHECK(job.coordinator.generation().number == 4);
    job.leave({0, 2});
    for (const Rank r : {0, 2}) job.hear(r, WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == -1);
  }
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

TEST_CASE("a worn process that ends behind a loss, last of all, does not take the job to its next phase") {
  ThreePlaces job(nullptr, 0, true);
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.fail(0);
  job.leave({0});
  job.ends(2, ProcessEnd::Kind::ordinary, "worker 2 was killed");
  job.hear_in_batch(2, Quiesced{Versions{1}});
  job.ends(1, ProcessEnd::Kind::worn, "it has ended");
  CHECK(job.who<Enter>(3).empty());
  job.coordinator.turn(0);
  CHECK(job.coordinator.generation().number == 4);
}
