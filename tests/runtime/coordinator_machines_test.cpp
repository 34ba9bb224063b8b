// How a coordinator goes on when places are on several machines.
#include <algorithm>
#include <array>

#include "runtime/launch/running_job.h"
#include "tests/runtime/three_places.h"

using namespace three_places;

TEST_CASE("on two machines a place takes what it lacks from either, and is told who has it where") {
  ThreePlaces job;
  job.machines = {{2, 1}};
  job.do_three_steps();
  job.holds = {{0, Versions{2, 3}}, {1, Versions{2}}, {2, Versions{2, 3}}};
  job.down(1);
  job.leave({0, 2});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  const StateHome& home = job.last<Connect>().home;
  CHECK(job.last<Connect>().adopt == 3);
  CHECK(home.areas == std::vector<std::string>{"of 0", "", "of 2"});
  CHECK(home.area_machines == Machines{0, -1, 1});
  CHECK(home.machines == Machines{0, 0, 1});
}

TEST_CASE("what a place alone had of the moments takes the job back to its beginning, on two machines too") {
  for (const int zero : {0, 1}) {
    CAPTURE(zero);
    ThreePlaces job(nullptr, zero);
    job.machines = {{2, 1}};
    job.do_three_steps();
    job.holds = {{0, Versions{2, 3}}, {1, Versions{}}, {2, Versions{2, 3}}};
    job.down(1, 0, true);
    job.leave({0, 2});
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
    REQUIRE_FALSE(job.coordinator.over());
    CHECK(job.last<Connect>().adopt == (zero == 0 ? 3 : -1));
    CHECK(job.last<Connect>().restore == (zero == 0 ? "" : "checkpoint to begin from"));
  }
}

TEST_CASE("where several machines are left, places of a new plan are told which has which memory") {
  ThreePlaces job(nullptr, 0, true);
  job.machines = {{1, 1}, {2, 2}};
  job.do_three_steps();
  job.all_hold({3});
  job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine c");
  job.coordinator.turn(0);
  job.leave({0, 1});
  REQUIRE(job.coordinator.plan().workers() == 2);
  for (const Rank r : {0, 1}) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == 3);
  CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "of 1", ""});
  CHECK(job.last<Connect>().home.area_machines == Machines{0, 1, -1});
  CHECK(job.last<Connect>().home.machines == Machines{0, 1});
}

TEST_CASE("a change of the plan leaves no machine that alone has a part of the state, or is refused") {
  for (const auto& [zero, other] : {std::pair(0, 2), {1, 2}, {1, 1}}) {  // the second: the place on another machine
    CAPTURE(zero);
    CAPTURE(other);
    ThreePlaces job(nullptr, zero, true);
    job.machines = {{other, 1}};
    job.do_three_steps();
    ChosenPlan two{std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, zero)), "dp=2", 0, {}};
    ChosenPlan one{std::make_shared<const Plan>(ThreePlaces::make_plan(1, false, zero)), "dp=1", 0, {}};
    const Status s = job.coordinator.change(one, "asked", 0);
    CHECK(s.ok() == (zero == 0));
    if (zero == 0) continue;
    CHECK(s.message().find("dp=1 would leave machines that alone have a part of the state") != std::string::npos);
    REQUIRE(job.coordinator.change(two, "asked", 0).ok());
    for (std::int64_t step = 3; step < 5; ++step) job.commit(step);  // those that have begun
    for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 5, {}, 0});
    job.coordinator.turn(0);
    REQUIRE(job.coordinator.generation().number == 3);
    const std::int64_t now = 5;
    job.all_hold({now});
    job.leave({0, 1, 2});
    REQUIRE(job.shapes.size() == 1);
    CHECK(job.shapes[0].size() == 2);
    // The other two do not reach its moments.
    CHECK(std::count(job.shapes[0].begin(), job.shapes[0].end(), PlaceId{other}) == 1);
    for (const PlaceId place : job.shapes[0]) job.hear(static_cast<Rank>(place), WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == now);
  }
}

TEST_CASE("of the shapes for fewer places the fastest is taken with which no machine that has state is left") {
  const auto shape = [](const std::vector<std::int64_t>& stages, const std::string& name, double step_s) {
    return ChosenPlan{std::make_shared<const Plan>(ThreePlaces::make_plan(stages, false, 0)), name, step_s, {}};
  };
  for (const bool keeps : {true, false}) {
    CAPTURE(keeps);
    const auto replans = [&](CoordinatorOptions& o) {
      o.replan = [&](const Plan&, std::int64_t) -> Expected<ChosenPlan> {
        ChosenPlan fastest = shape({1}, "dp=1", 1e-3);
        fastest.others = {"pp=2: a step of 2 ms", "dp=3: too large"};
        fastest.slower = {shape({1, 1}, "pp=2", 2e-3)};
        return fastest;
      };
    };
    ThreePlaces job(nullptr, 0, true, 3, CoordinatorOptions().detect_ns, replans, {2, 1});
    job.machines = {{1, 1}, {2, 2}};
    job.do_three_steps();
    job.all_hold({3});
    const Rank lost = keeps ? 0 : 2;  // a replica of stage 0, or all of stage 1
    job.ends(lost, ProcessEnd::Kind::lost, "lost with its machine");
    job.coordinator.turn(0);
    job.leave({keeps ? 2 : 0, 1});
    REQUIRE(job.shapes.size() == 1);
    CHECK(job.coordinator.plan().workers() == (keeps ? 2 : 1));
    for (const PlaceId place : job.shapes[0]) job.hear(static_cast<Rank>(place), WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == (keeps ? 3 : -1));
    if (!keeps) continue;
    for (const PlaceId place : job.shapes[0]) job.hear(static_cast<Rank>(place), Ready{});
    for (const PlaceId place : job.shapes[0]) job.hear(static_cast<Rank>(place), Progress{1});
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].shape == "pp=2");
    CHECK(job.incidents[0].others ==
          std::vector<std::string>{"dp=3: too large",
                                   "dp=1: a step of 1 ms, but a machine with state would have no place"});
  }
}

TEST_CASE("a shape with fewer ranks than machines is given to those that have all of the state together") {
  for (const auto& stages : {std::vector<std::int64_t>{2, 1}, {1, 2}}) {  // of one stage two machines have the state
    CAPTURE(stages[0]);
    ThreePlaces job(nullptr, 0, true, 3, CoordinatorOptions().detect_ns, {}, stages);
    job.machines = {{1, 1}, {2, 2}};
    job.do_three_steps();
    ChosenPlan two{std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 0)), "dp=2", 0, {}};
    CHECK(job.coordinator.change(two, "asked", 0).ok());
    ChosenPlan one{std::make_shared<const Plan>(ThreePlaces::make_plan(1, false, 0)), "dp=1", 0, {}};
    CHECK_FALSE(ThreePlaces(nullptr, 0, true, 3, CoordinatorOptions().detect_ns, {}, stages)
                    .coordinator.change(one, "asked", 0)
                    .ok());
  }
}

TEST_CASE("a machine is lost with its memory, and the job goes on from that of the machine that has all places then") {
  for (const bool redundant : {true, false}) {
    CAPTURE(redundant);
    ThreePlaces job(nullptr, redundant ? 0 : 1, true);
    job.machines = {{2, 1}};
    job.do_three_steps();
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
  job.do_three_steps();
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
    job.do_three_steps();
    if (corrupt) {
      job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
      CHECK(job.killed == RankList{1});
    }
    job.ends(1, ProcessEnd::Kind::lost, "worker 1 was lost with machine b");
    const JobResult r = job.result();
    CHECK(r.exit_code == exit_worker);
    CHECK(r.status.message().find("lost for good") != std::string::npos);
    CHECK(job.restarted.empty());
  }
}

TEST_CASE("a shape with fewer ranks than machines is given to those that have and guard all of the state together") {
  ThreePlaces job(
      nullptr, 1, true, 3, CoordinatorOptions().detect_ns,
      [](CoordinatorOptions& o) {
        o.guard_within = guard_within_least;
        o.replan = [](const Plan&, std::int64_t) -> Expected<ChosenPlan> {
          return ChosenPlan{std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 1)), "dp=2", 0, {}};
        };
      },
      {4});
  job.machines = {{1, 1}, {2, 2}, {3, 3}};
  for (Rank r = 0; r < 4; ++r) job.hear(r, WorkerAddress{"a"});
  for (Rank r = 0; r < 4; ++r) job.hear(r, Ready{});
  for (std::int64_t step = 0; step < 5; ++step) {
    for (Rank r = 0; r < 4; ++r) job.hear_in_batch(r, job.vote_of(r, step));
    job.coordinator.turn(0);
    REQUIRE(job.coordinator.committed() == step + 1);
  }
  // Machine 1 guards what place 0 has, and machine 3 what place 2 has: with 1 and 2 a part of the state would be lost.
  job.ends(0, ProcessEnd::Kind::lost, "worker 0 was lost with machine a");
  job.coordinator.turn(0);
  job.leave({1, 2, 3});
  REQUIRE(job.shapes.size() == 1);
  CHECK(job.shapes[0] == std::vector<PlaceId>{PlaceId{1}, PlaceId{3}});
  for (const Rank r : {1, 3}) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt > 0);
}

TEST_CASE("places guard as rarely as the job may repeat steps, and wait for no guard longer than it says") {
  for (const auto& [within, most, every, window] :
       std::vector<std::array<std::int64_t, 4>>{{9, 1, 7, 1}, {9, 0, 8, 0}, {9, 100, 5, 3}, {2, 100, 1, 0}}) {
    ThreePlaces job(nullptr, 1, true, 3, CoordinatorOptions().detect_ns, [&](CoordinatorOptions& o) {
      o.guard_within = within;
      o.guard_window_most = most;
    });
    job.machines = {{0, 0}, {1, 1}, {2, 2}};
    job.enter();
    const Connect connect = job.last<Connect>();
    CAPTURE(within);
    CAPTURE(most);
    CHECK(connect.guard.every == every);
    CHECK(connect.guard.window == window);
  }
}

TEST_CASE("a job's coordinator has the guards that its options say") {
  JobOptions options;
  options.guard_within = 31;
  options.guard_window_most = 7;
  const CoordinatorOptions o = coordinator_options(options, Plan{});
  CHECK(o.guard_within == 31);
  CHECK(o.guard_window_most == 7);
}

TEST_CASE("what a lost place has guarded is taken from its guard, also where others of its machine live") {
  ThreePlaces job(nullptr, 1, true, 3, CoordinatorOptions().detect_ns,
                  [](CoordinatorOptions& o) { o.guard_within = guard_within_least; });
  job.machines = {{2, 1}};
  job.enter();
  for (std::int64_t step = 0; step < 5; ++step) job.commit(step);
  job.ends(0, ProcessEnd::Kind::lost, "worker 0 has not ended since it was killed");
  job.coordinator.turn(0);
  job.leave({1, 2});
  REQUIRE(job.coordinator.plan().workers() == 2);
  for (const Rank r : {1, 2}) job.hear(r, WorkerAddress{"a"});
  const Connect connect = job.last<Connect>();
  CHECK(connect.adopt > 0);
  CHECK(connect.home.areas == std::vector<std::string>{"of 2", "of 1", "of 2"});
}
