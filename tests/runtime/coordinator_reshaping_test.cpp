// How a coordinator takes a job to another shape: places that are gone for good, requests.
#include "tests/runtime/three_places.h"

using namespace three_places;

namespace {

/// All places of the plan that runs vote for a step, which commits.
void vote_all(ThreePlaces& job, std::int64_t step) {
  const Plan& plan = job.coordinator.plan();
  const auto places = job.coordinator.places();
  for (Rank r = 0; r < plan.workers(); ++r) {
    Closed vote{plan.step_program(), step, {}, 0, planted_votes::told(plan, r, 1, 1e-3f)};
    if (r == 0) vote.reports.push_back({Report::Kind::loss, "loss", step, 0, {1}});
    job.hear(static_cast<Rank>(places[static_cast<std::size_t>(r)]), vote);
  }
  REQUIRE(job.coordinator.committed() == step + 1);
}

}  // namespace

TEST_CASE(
    "places that are gone for good are not started again: the others go on with another plan, each with most of its "
    "state") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  job.holds = {{0, Versions{2, 3}}, {1, Versions{2}}, {2, Versions{2, 3}}};
  job.down(1, 10 * ms);
  CHECK(job.who<Abort>(3) == RankList{0, 2});
  CHECK(job.restarted.empty());
  job.leave({0, 2});
  REQUIRE(job.shapes == std::vector<std::vector<PlaceId>>{{PlaceId{0}, PlaceId{2}}});
  CHECK(job.who<Enter>(3) == RankList{0, 2});
  CHECK(job.coordinator.plan().workers() == 2);
  for (const Rank place : {0, 2}) job.hear(place, WorkerAddress{"a"}, 20 * ms);
  const Connect connect = job.last<Connect>();
  CHECK(connect.adopt == 2);  // place 1 alone had a part of the moments, and holds no newer version
  CHECK_FALSE(connect.home.plan.empty());
  CHECK(connect.home.areas == std::vector<std::string>{"of 0", "of 1", "of 2"});
  CHECK(connect.home.own == std::vector<Rank>{0, 2});
  CHECK(connect.addresses.size() == 2);
  CHECK(job.settled_ == 0);
  job.hear(0, Ready{0, 0, 100});
  job.hear(0, Ready{0, 0, 100});
  job.hear(2, Ready{0, 0, 20});
  CHECK(job.settled_ == 0);
  CHECK(job.last<BeginRun>().step == 2);
  job.hear(2, Progress{1, false, {}, 0}, 30 * ms);
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].culprit == 1);
  CHECK(job.incidents[0].shape == "fewer");
  CHECK(job.incidents[0].others == std::vector<std::string>{"another: slower"});
  CHECK(job.incidents[0].moved_bytes == 120);
  const JobState state = job.coordinator.state();
  CHECK(state.incidents == 1);
  CHECK(state.shape == "fewer");
  CHECK(state.places[1].gone);
  CHECK_FALSE(state.places[2].gone);
  CHECK(to_text(state, 50 * ms).find("gone: worker 1\n") != std::string::npos);
  CHECK(state.places[1].rank == -1);
  CHECK(state.places[2].rank == 1);
  CHECK(to_text(state, 50 * ms).find("step 2 of 20, generation 3, runs, as fewer\n") == 0);
  vote_all(job, 2);
  CHECK(job.settled_ == 1);
  // The next loss is of rank 1, which place 2 runs.
  job.all_hold({2});
  job.down(2, 40 * ms);
  job.leave({0});
  CHECK(job.shapes.back() == std::vector<PlaceId>{PlaceId{0}});
  job.hear(0, WorkerAddress{"a"});
  CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "of 2"});
  CHECK(job.last<Connect>().home.own == std::vector<Rank>{0});
  job.hear(0, Ready{});
  vote_all(job, 2);
  CHECK(job.settled_ == 2);
  CHECK(job.incidents[1].culprit == 2);
}

TEST_CASE("a place that is lost while another plan is entered: the state still lies where it was before") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  job.all_hold({3});
  job.down(0);
  job.leave({1, 2});
  bool suspect = false;
  SUBCASE("by SIGKILL") {}
  SUBCASE("by SIGSEGV, with a part of the moments that it alone had") { suspect = true; }
  job.all_hold({});  // in their new memory
  job.down(2, 0, suspect);
  CHECK(job.who<Abort>(4) == RankList{1});
  job.leave({1});
  CHECK(job.shapes == std::vector<std::vector<PlaceId>>{{PlaceId{1}, PlaceId{2}}, {PlaceId{1}}});
  job.hear(1, WorkerAddress{"a"});
  const Connect connect = job.last<Connect>();
  if (suspect) {
    CHECK(connect.adopt == -1);
    CHECK(connect.restore == "checkpoint to begin from");
  } else {
    CHECK(connect.adopt == 3);
    CHECK(connect.home.areas == std::vector<std::string>{"of 0", "of 1", "of 2"});
    CHECK(connect.home.own == std::vector<Rank>{1});
  }
}

TEST_CASE(
    "a place that is lost when all are ready with another plan, and has not voted: the state still lies where it was "
    "before (CO-2 votes)") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  job.all_hold({3});
  job.down(0);
  job.leave({1, 2});
  for (const Rank place : {1, 2}) job.hear(place, WorkerAddress{"a"});
  for (const Rank place : {1, 2}) job.hear(place, Ready{});
  CHECK(job.last<BeginRun>().step == 3);
  job.all_hold({});  // in their new memory
  job.down(1);
  job.leave({2});
  job.hear(2, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == 3);
  CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "of 1", "of 2"});
  CHECK(job.last<Connect>().home.own == std::vector<Rank>{2});
}

TEST_CASE("a job that is asked to go on with the plan that it runs goes on from what its places hold") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  const ChosenPlan same{std::shared_ptr<const Plan>(&job.p, [](const Plan*) {}), "the same", 0, {}};
  REQUIRE(job.coordinator.change(same, "asked", 0).ok());
  for (std::int64_t step = 1; step < 3; ++step) job.commit(step);  // those that have begun
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 3, {}, 0});
  job.coordinator.turn(0);
  job.all_hold({3});
  job.leave({0, 1, 2});
  REQUIRE(job.shapes.size() == 1);
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == 3);
  CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "of 1", "of 2"});
}

TEST_CASE("a worn process is replaced, though its job replaces no lost place") {
  ThreePlaces job(nullptr, 0, true);
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.fail(0);  // all leave
  job.ends(1, ProcessEnd::Kind::worn, "it has ended");
  job.coordinator.turn(0);
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
  CHECK(job.coordinator.generation().number == 3);  // that is no loss
  job.leave({0, 2});
  CHECK(job.shapes.empty());
  job.enter();
  job.hear(0, Progress{1, false, {}, 0});
  CHECK(job.incidents[0].lost.empty());
  CHECK(job.last<Connect>().adopt == 1);
}

TEST_CASE("a place that fails while it enters another plan: the state still lies where it was (CO-2 votes)") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  job.all_hold({3});
  job.down(0);
  job.leave({1, 2});
  job.hear(1, WorkerFailed{"", Status(Code::exhausted, "no memory")});
  CHECK(job.settled_ == 0);
  job.down(1);
  job.leave({2});
  job.hear(2, WorkerAddress{"a"});
  CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "of 1", "of 2"});
}

TEST_CASE("a straggler is told of by its place, whatever its rank, and not while another plan is entered") {
  std::vector<Straggler> named;
  ThreePlaces job(nullptr, 1, true);
  job.on_straggler = [&](const Straggler& s) { named.push_back(s); };
  job.enter();
  job.all_hold({0});
  job.down(0);
  job.leave({1, 2});
  for (const Rank r : {1, 2}) job.hear(r, WorkerAddress{"a"});
  for (const Rank r : {1, 2}) job.hear(r, Ready{});
  const Plan& plan = job.coordinator.plan();
  REQUIRE(plan.workers() == 2);
  const auto& places = job.coordinator.places();
  const auto steps = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step)
      for (Rank r = 0; r < 2; ++r) {
        Closed vote{plan.step_program(), step, {}, 0, planted_votes::told(plan, r, 1, 1e-3f)};
        if (r == 0) vote.reports.push_back({Report::Kind::loss, "loss", step, 0, {1}});
        vote.busy_ns = places[static_cast<std::size_t>(r)] == PlaceId{2} ? 900 * ms : 300 * ms;
        job.hear(static_cast<Rank>(places[static_cast<std::size_t>(r)]), vote, step * 1000 * ms);
      }
  };
  steps(0, 14);
  REQUIRE(named.size() == 1);
  CHECK(named[0].place == 2);
  CHECK(job.coordinator.state().places[2].slow_times == doctest::Approx(3));
  job.down(1);
  for (const auto& place : job.coordinator.state().places) CHECK((place.slow_times == 0 || place.slow_times > 2));
}

TEST_CASE("a job that is asked to change refuses where it cannot, and says why") {
  const auto chosen = [](std::int64_t dp) {
    return ChosenPlan{std::make_shared<const Plan>(ThreePlaces::make_plan(dp, false, 0)), "another", 0, {}};
  };
  ThreePlaces job;
  CHECK(says(job.coordinator.change(chosen(2), "asked", 0), "has not begun"));
  job.enter();
  job.commit(0);
  CHECK(says(job.coordinator.change(chosen(4), "asked", 0), "another needs 4 places, and there are 3"));
  CHECK(job.coordinator.change(chosen(2), "asked", 0).ok());
  CHECK(says(job.coordinator.change(chosen(1), "asked", 0), "is about to change"));
  CHECK(job.coordinator.state().phase == "is about to change its shape");
  for (std::int64_t step = 1; step < 3; ++step) job.commit(step);  // those that have begun
  CHECK(job.coordinator.generation().number == 2);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 3, {}, 0});
  job.coordinator.turn(0);
  CHECK(job.coordinator.generation().number == 3);
  CHECK(job.who<Stop>(2).empty());
  ThreePlaces ends;
  ends.enter();
  for (std::int64_t step = 0; step < 18; ++step) ends.commit(step);
  CHECK(says(ends.coordinator.change(chosen(2), "asked", 0), "ends with the steps that have begun"));
}

namespace {

/// A job of three places is asked to go on with two, has done the steps that had begun, and its places leave.
void change_to_two(ThreePlaces& job) {
  job.enter();
  job.commit(0);
  REQUIRE(job.coordinator
              .change({std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 1)), "two", 0, {}}, "asked", 0)
              .ok());
  for (std::int64_t step = 1; step < 3; ++step) job.commit(step);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 3, {}, 0});
  job.coordinator.turn(0);
  job.all_hold({3});
}

/// All places of the plan that is entered are ready.
void enter_two(ThreePlaces& job) {
  job.leave({0, 1, 2});
  REQUIRE(job.coordinator.plan().workers() == 2);
  const auto places = job.coordinator.places();
  for (const PlaceId p : places) job.hear(static_cast<Rank>(p), WorkerAddress{"a"});
  for (const PlaceId p : places) job.hear(static_cast<Rank>(p), Ready{});
}

}  // namespace

TEST_CASE(
    "a place that is lost as a change is entered: the job goes on with the plan before, and that is an incident") {
  ThreePlaces job(nullptr, 1);
  change_to_two(job);
  job.leave({0, 1, 2});
  REQUIRE(job.coordinator.plan().workers() == 2);
  const Rank lost = static_cast<Rank>(job.coordinator.places()[0]);
  job.down(lost);
  CHECK(job.coordinator.state().incidents == 1);
  job.leave({static_cast<Rank>(job.coordinator.places()[1])});
  CHECK(job.coordinator.plan().workers() == 3);
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  for (Rank r = 0; r < 3; ++r) job.hear(r, Ready{});
  job.hear(0, Progress{1, false, {}, 0});
  REQUIRE(job.incidents.size() == 1);
  CHECK_FALSE(job.incidents[0].planned);
  CHECK(job.incidents[0].culprit == lost);
  CHECK(job.incidents[0].cause.find("then the change was given up") != std::string::npos);
}

TEST_CASE("a change is over when all have voted in the new shape, and not before; then the job may be asked again") {
  ThreePlaces job(nullptr, 1);
  change_to_two(job);
  enter_two(job);
  CHECK(job.coordinator.may_change().code() == Code::unavailable);
  CHECK(job.settled_ == 0);
  const Plan& plan = job.coordinator.plan();
  const Closed vote{plan.step_program(), 3, {}, 0, planted_votes::told(plan, 1, 1, 1e-3f)};
  job.hear(static_cast<Rank>(job.coordinator.places()[1]), vote);
  CHECK(job.settled_ == 0);
  Closed other{plan.step_program(), 3, {}, 0, planted_votes::told(plan, 0, 1, 1e-3f)};
  other.reports.push_back({Report::Kind::loss, "loss", 3, 0, {1}});
  job.hear(static_cast<Rank>(job.coordinator.places()[0]), other);
  REQUIRE(job.coordinator.committed() == 4);
  CHECK(job.settled_ == 1);
  CHECK(job.coordinator.may_change().ok());
}

TEST_CASE(
    "memory of a process that has crashed is not used, but what the process in its place leaves in new memory is") {
  ThreePlaces job(nullptr, 1);
  job.do_three_steps();
  job.all_hold({3});
  job.down(1, 0, true);
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, true}});
  job.leave({0, 2});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == -1);  // it alone had a part of the moments
  job.all_hold({0});
  job.down(2);
  job.leave({0, 1});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == 0);
}

TEST_CASE("a change uses the memory of a process that took the place of one that had crashed") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.down(1, 0, true);
  job.leave({0, 2});
  job.enter();
  job.commit(1);
  const ChosenPlan same{std::shared_ptr<const Plan>(&job.p, [](const Plan*) {}), "the same", 0, {}};
  REQUIRE(job.coordinator.change(same, "asked", 0).ok());
  for (std::int64_t step = 2; step < 4; ++step) job.commit(step);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 4, {}, 0});
  job.coordinator.turn(0);
  job.all_hold({4});
  job.leave({0, 1, 2});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "of 1", "of 2"});
}

TEST_CASE("the memory of a place that crashes is not used, when another plan has no rank for it, either") {
  for (const bool suspect : {false, true}) {
    CAPTURE(suspect);
    ThreePlaces job(nullptr, 1, true);
    job.do_three_steps();
    ChosenPlan two{std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 1)), "dp=2", 0, {}};
    REQUIRE(job.coordinator.change(two, "asked", 0).ok());
    for (std::int64_t step = 3; step < 5; ++step) job.commit(step);
    for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 5, {}, 0});
    job.coordinator.turn(0);
    job.all_hold({5});
    job.leave({0, 1, 2});
    for (const Rank place : {0, 1, 2})
      if (job.coordinator.rank_of(PlaceId{place}) < 0)
        job.ends(place, suspect ? ProcessEnd::Kind::suspect : ProcessEnd::Kind::ordinary, "it has ended");
    for (const PlaceId place : job.coordinator.places()) job.hear(static_cast<Rank>(place), WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == (suspect ? -1 : 5));
  }
}

TEST_CASE("a spare that was told no plan is told of no generation") {
  ThreePlaces job(nullptr, 0, true);
  job.coordinator.add_place(PlaceId{3}, 0);
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.down(1);
  CHECK(job.who<Abort>(3) == RankList{0, 2});
}
