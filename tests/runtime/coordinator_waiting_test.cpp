// How a coordinator waits for places where a job has lost some for good with their machine.
#include <algorithm>

#include "tests/runtime/three_places.h"

using namespace three_places;

namespace {

constexpr std::int64_t wait_ns = 10'000 * ms;

void wait_ten_seconds(CoordinatorOptions& o) { o.wait_for_places_ns = wait_ns; }

/// A job that has done three steps, and whose place 2 is lost with its machine; the others have left.
void lose_two(ThreePlaces& job, std::int64_t now_ns = 0) {
  job.machines = {{2, 1}, {3, 2}};
  job.do_three_steps();
  job.all_hold({3});
  job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine b", now_ns);
  job.coordinator.turn(now_ns);
  for (const Rank r : {0, 1}) job.hear(r, Quiesced{job.holds[r]}, now_ns);
}

using Newcomers = ThreePlaces::Newcomers;
const auto detects = CoordinatorOptions().detect_ns;

}  // namespace

TEST_CASE("a job whose machine is lost waits for another place, and goes on with its plan when it is there") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  lose_two(job);
  REQUIRE_FALSE(job.coordinator.over());
  CHECK(job.coordinator.waits_for_places());
  CHECK(job.coordinator.state().phase == "waits for machines");
  CHECK(job.shapes.empty());
  CHECK(job.restarted.empty());
  CHECK(job.dismissed == RankList{2});
  job.coordinator.add_place(PlaceId{3}, ms);
  job.coordinator.turn(ms);
  CHECK_FALSE(job.coordinator.waits_for_places());
  CHECK(job.shapes.empty());
  REQUIRE(job.filled == Newcomers{{PlaceId{3}}});
  CHECK(job.coordinator.places() == std::vector<PlaceId>{PlaceId{0}, PlaceId{1}, PlaceId{3}});
  for (const Rank r : {0, 1, 3}) job.hear(r, WorkerAddress{"a"}, ms);
  CHECK(job.last<Connect>().adopt == 3);
  CHECK(job.last<Connect>().home.area_machines == Machines{0, 0, -1});
  CHECK(job.last<Connect>().home.machines == Machines{0, 0, 2});
}

TEST_CASE("a job that waits for a place for too long ends, and says for how long it has waited") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  lose_two(job);
  for (std::int64_t now = 0; now < wait_ns; now += 100 * ms) {
    for (const Rank r : {0, 1}) job.hear(r, Progress{8, false, {}, 0, {}}, now);
    REQUIRE_FALSE(job.coordinator.over());
  }
  CHECK(job.coordinator.wakes_ns() <= wait_ns);
  job.coordinator.turn(wait_ns);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(r.status.message().find("too few have joined within 10 s") != std::string::npos);
  CHECK(r.status.message().find("worker 2 was lost with machine b") != std::string::npos);
  REQUIRE(r.incidents.size() == 1);
}

TEST_CASE(
    "a job that waits for longer than a machine is given to come back wants to be called when it gives up, not at "
    "once") {
  ThreePlaces job(nullptr, 0, false, 3, detects, [](CoordinatorOptions& o) { o.wait_for_places_ns = 60'000 * ms; });
  lose_two(job);
  for (std::int64_t now = 0; now < 15'000 * ms; now += 100 * ms) {
    for (const Rank r : {0, 1}) job.hear(r, Progress{8, false, {}, 0, {}}, now);
    job.coordinator.turn(now);
    REQUIRE(job.coordinator.wakes_ns() > now);
  }
  CHECK(job.coordinator.waits_for_places());
}

TEST_CASE("a job that waits for places is not stalled, but misses a place that says nothing") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  lose_two(job);
  for (std::int64_t now = 0; now < 4 * detects; now += 100 * ms) job.hear(0, Progress{8, false, {}, 0, {}}, now);
  REQUIRE_FALSE(job.coordinator.over());
  CHECK(job.killed == RankList{1});
  job.down(1, 4 * detects);
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
  CHECK_FALSE(job.coordinator.over());
}

TEST_CASE("a place that is lost while the job waits for another one is waited for, too, and the wait is no longer") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  lose_two(job);
  job.ends(1, ProcessEnd::Kind::lost, "worker 1 was lost with machine a", ms);
  job.coordinator.turn(ms);
  job.hear(0, Quiesced{job.holds[0]}, ms);
  job.coordinator.add_place(PlaceId{3}, ms);
  job.coordinator.turn(ms);
  CHECK(job.coordinator.waits_for_places());
  job.coordinator.add_place(PlaceId{4}, 2 * ms);
  SUBCASE("both come") {
    job.coordinator.turn(2 * ms);
    CHECK(job.filled == Newcomers{{PlaceId{3}, PlaceId{4}}});
  }
  SUBCASE("one of them dies before it has a rank") {
    job.ends(4, ProcessEnd::Kind::ordinary, "worker 4 was killed", 2 * ms);
    job.coordinator.turn(2 * ms);
    CHECK(job.coordinator.waits_for_places());
    job.coordinator.turn(wait_ns + ms);
    CHECK(job.coordinator.over());
  }
}

TEST_CASE("a job that does not replace places waits until enough machines are reached, and goes on with those") {
  for (const int machines_min : {1, 2}) {
    CAPTURE(machines_min);
    ThreePlaces job(nullptr, 0, true, 3, detects, [&](CoordinatorOptions& o) {
      wait_ten_seconds(o);
      o.machines_min = machines_min;
    });
    lose_two(job);
    CHECK(job.coordinator.waits_for_places() == (machines_min == 2));
    CHECK(job.shapes.size() == (machines_min == 2 ? 0 : 1));
    job.reached = 2;
    job.coordinator.turn(ms);
    REQUIRE(job.shapes.size() == 1);
    CHECK(job.shapes[0].size() == 2);
  }
}

TEST_CASE("a job that is asked to end while it waits for a place saves with those that are left, at once") {
  for (const bool before : {false, true}) {  // it was asked before the machine was lost
    CAPTURE(before);
    SavedBefore checkpoints;
    ThreePlaces job(&checkpoints, 0, false, 3, detects, [&](CoordinatorOptions& o) {
      wait_ten_seconds(o);
      o.replan = [](const Plan&, std::int64_t places) -> Expected<ChosenPlan> {
        return ChosenPlan{std::make_shared<const Plan>(ThreePlaces::make_plan(places, true, 0)), "fewer", 0, {}};
      };
    });
    const auto ask = [&] { job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, ms); };
    job.machines = {{2, 1}};
    job.do_three_steps();
    job.all_hold({3});
    if (before) ask();
    job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine b");
    job.coordinator.turn(ms);
    job.leave({0, 1});
    if (!before) {
      CHECK(job.coordinator.waits_for_places());
      ask();
    }
    job.coordinator.turn(ms);
    job.leave({0, 1});  // once more
    REQUIRE_FALSE(job.coordinator.over());
    REQUIRE(job.shapes.size() == 1);
    CHECK(job.shapes[0].size() == 2);
    for (const Rank r : {0, 1}) job.hear(r, WorkerAddress{"a"}, ms);
    CHECK(job.last<Connect>().adopt == 3);
    CHECK(job.coordinator.pause().version() == 3);
  }
}

TEST_CASE("a job that is asked to end while it waits, and keeps its shape, says that nothing is saved") {
  SavedBefore checkpoints;
  ThreePlaces job(&checkpoints, 0, false, 3, detects, wait_ten_seconds);
  lose_two(job);
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, ms);
  job.coordinator.turn(ms);
  job.leave({0, 1});
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(r.status.message().find("the machines that have its parameters are lost") != std::string::npos);
}

TEST_CASE("a change to a mesh that those who are left can run ends the wait for a place") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  lose_two(job);
  ChosenPlan two{std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 0)), "dp=2", 0, {}};
  REQUIRE(job.coordinator.change(two, "asked to go on as dp=2", ms).ok());
  job.coordinator.turn(ms);
  REQUIRE(job.shapes.size() == 1);
  CHECK(job.shapes[0] == std::vector<PlaceId>{PlaceId{0}, PlaceId{1}});
}

TEST_CASE("a place whose process alone is lost comes back in a new one, and the job waits for no machine") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  job.do_three_steps();
  job.all_hold({3});
  job.down(1);
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
  job.leave({0, 2});
  CHECK_FALSE(job.coordinator.waits_for_places());
}

TEST_CASE("a place whose machine is reached again has its rank and what it has kept, in a new process") {
  for (const bool has : {true, false}) {
    CAPTURE(has);
    ThreePlaces job(nullptr, 1, false, 3, detects, wait_ten_seconds);  // each place alone has a third of the moments
    lose_two(job);
    REQUIRE(job.coordinator.waits_for(PlaceId{2}));
    CHECK_FALSE(job.coordinator.waits_for(PlaceId{1}));
    CHECK_FALSE(job.coordinator.waits_for(PlaceId{7}));
    job.coordinator.comes_back(PlaceId{2}, has ? Versions{2, 3} : Versions{}, ms);
    job.coordinator.turn(ms);
    CHECK_FALSE(job.coordinator.waits_for_places());
    CHECK(job.shapes.empty());
    CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{2, false}});
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"}, ms);
    CHECK(job.last<Connect>().adopt == (has ? 3 : -1));
    if (has) CHECK(job.last<Connect>().home.areas.empty());
  }
}

TEST_CASE(
    "a job that has taken another place waits for the lost one no more, but for those that keep the state if they are "
    "lost before that one has it") {
  ThreePlaces job(nullptr, 0, false, 3, detects, [](CoordinatorOptions& o) { o.wait_for_places_ns = 6 * wait_ns; });
  lose_two(job);
  for (const Rank r : {1, 3, 4, 5}) job.machines[r] = 10 + r;
  job.coordinator.add_place(PlaceId{3}, ms);
  job.coordinator.turn(ms);
  CHECK_FALSE(job.coordinator.waits_for(PlaceId{2}));
  for (const Rank r : {0, 1, 3}) job.hear(r, WorkerAddress{"a"}, ms);
  for (const Rank r : {0, 1}) {
    job.ends(r, ProcessEnd::Kind::lost, "its machine was lost", 2 * ms);
    job.coordinator.turn(2 * ms);
  }
  job.hear(3, Quiesced{}, 2 * ms);
  for (const Rank r : {4, 5}) job.coordinator.add_place(PlaceId{r}, 3 * ms);
  job.coordinator.turn(3 * ms);
  CHECK(job.coordinator.waits_for_places());  // though there are three, for none has the state
  CHECK(job.coordinator.waits_for(PlaceId{1}));
  job.coordinator.comes_back(PlaceId{1}, Versions{3}, 4 * ms);
  job.coordinator.turn(4 * ms);
  CHECK_FALSE(job.coordinator.waits_for_places());
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
  CHECK(job.coordinator.places()[1] == PlaceId{1});
  for (const PlaceId place : job.coordinator.places()) job.hear(static_cast<Rank>(place), WorkerAddress{"a"}, 4 * ms);
  CHECK(job.last<Connect>().adopt == 3);
}

TEST_CASE("a place that was lost with memory that others may read gets another plan, which takes from there") {
  ThreePlaces job(nullptr, 0, true, 3, detects);
  job.do_three_steps();
  job.all_hold({3});
  job.coordinator.add_place(PlaceId{3}, 0);
  SUBCASE("its memory is left") {
    job.down(2);
    job.leave({0, 1});
    CHECK(job.filled.empty());
    CHECK(job.shapes.size() == 1);
  }
  SUBCASE("it may be damaged") {
    job.down(2, 0, true);
    job.leave({0, 1});
    CHECK(job.filled == Newcomers{{PlaceId{3}}});
    CHECK(job.shapes.empty());
  }
}

TEST_CASE("what the places before kept may go once those that have taken ranks since have made a version") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  lose_two(job);
  job.coordinator.add_place(PlaceId{3}, ms);
  job.coordinator.turn(ms);
  for (const Rank r : {0, 1, 3}) job.hear(r, WorkerAddress{"a"}, ms);
  for (const Rank r : {0, 1, 3}) job.hear(r, Ready{}, ms);
  CHECK(job.settled_ == 0);
  for (const Rank r : {0, 1, 3}) {
    const auto of = job.coordinator.rank_of(PlaceId{r});
    job.hear_in_batch(r, job.vote_of(of, 3), ms);
  }
  job.coordinator.turn(ms);
  CHECK(job.coordinator.committed() == 4);
  CHECK(job.settled_ == 1);
}

TEST_CASE("before the commit of a step is sent its predecessor's line is told, and the sums of the version it makes") {
  ThreePlaces job;
  job.do_three_steps();
  CHECK(job.remembered == std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {1, 1}, {2, 2}, {3, 3}});
  int commits = 0;
  for (const auto& sent : job.sent)
    if (const auto* commit = std::get_if<CommitStep>(&sent.message)) {
      CHECK(static_cast<std::int64_t>(sent.told) == commit->step);  // lines of the steps before its own
      ++commits;
    }
  CHECK(commits == 9);
}

TEST_CASE("a job that goes on for one whose process is lost begins with its version, as after an incident") {
  for (const bool one_lacks : {false, true}) {
    CAPTURE(one_lacks);
    ThreePlaces job(nullptr, 0, false, 3, detects, [&](CoordinatorOptions& o) {
      o.session.first_step = 5;
      o.session.sums = SumState{5, {}, 0};
      o.left = StateLeft{{{PlaceId{0}, Versions{5, 6}}, {PlaceId{2}, Versions{4, 5}}},
                         "the process of the run was lost"};
      if (!one_lacks) o.left->by_place[PlaceId{1}] = Versions{5};
    });
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == 5);
    CHECK(job.last<Connect>().home.areas.empty() != one_lacks);
    for (Rank r = 0; r < 3; ++r) job.hear(r, Ready{});
    job.hear(0, Progress{1, false, {}, 0, {}});
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].cause == "the process of the run was lost");
    CHECK(job.incidents[0].from == "memory");
    CHECK(job.incidents[0].version == 5);
    CHECK(job.incidents[0].committed == 5);
  }
}

TEST_CASE("a job that goes on for one whose process is lost, and loses what it began with, ends: it has nothing else") {
  ThreePlaces job(nullptr, 1, false, 3, detects, [&](CoordinatorOptions& o) {
    wait_ten_seconds(o);
    o.session.first_step = 5;
    o.session.sums = SumState{5, {}, 0};
    o.restore = "";
    o.left = StateLeft{{{PlaceId{0}, Versions{5}}, {PlaceId{1}, Versions{5}}, {PlaceId{2}, Versions{5}}},
                       "it was lost"};
  });
  SUBCASE("a machine of it is lost before its first step, and waited for") {
    job.machines = {{2, 1}, {3, 2}};
    job.all_hold({5});
    job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine b");
    job.coordinator.turn(0);
    job.coordinator.add_place(PlaceId{3}, 0);
    job.leave({0, 1});
    CHECK_FALSE(job.coordinator.over());
    CHECK(job.coordinator.waits_for_places());
    return;
  }
  job.enter();
  job.down(1, 0, true);
  job.all_hold({5});
  job.leave({0, 2});
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(r.status.message().find("of step 5, with which the job began in memory, not all is left") != std::string::npos);
}

TEST_CASE("a job that does not replace places, and waits for machines, goes on with a mesh that it is asked for") {
  ThreePlaces job(nullptr, 0, true, 3, detects, [&](CoordinatorOptions& o) {
    wait_ten_seconds(o);
    o.machines_min = 2;
  });
  lose_two(job);
  REQUIRE(job.coordinator.waits_for_places());
  ChosenPlan two{std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 0)), "dp=2", 0, {}};
  REQUIRE(job.coordinator.change(two, "asked to go on as dp=2", ms).ok());
  job.coordinator.turn(ms);
  CHECK_FALSE(job.coordinator.waits_for_places());
  CHECK(job.shapes.size() == 1);
}

TEST_CASE(
    "a machine that alone has a part of the state is waited for, though other places are there, and not for ever") {
  for (const bool comes : {true, false}) {
    CAPTURE(comes);
    ThreePlaces job(nullptr, 1, false, 3, detects, [&](CoordinatorOptions& o) {
      wait_ten_seconds(o);
      o.wait_for_places_ns = 6 * wait_ns;
    });
    lose_two(job);
    job.coordinator.add_place(PlaceId{3}, ms);
    job.coordinator.turn(ms);
    CHECK(job.coordinator.waits_for_places());
    const CoordinatorWaits own(detects);
    for (std::int64_t now = ms; now < own.return_ns; now += 100 * ms)
      for (const Rank r : {0, 1}) job.hear(r, Progress{8, false, {}, 0, {}}, now);
    CHECK(job.coordinator.waits_for_places());
    CHECK(job.coordinator.waits_for(PlaceId{2}));
    if (comes) job.coordinator.comes_back(PlaceId{2}, Versions{3}, own.return_ns - ms);
    job.coordinator.turn(comes ? own.return_ns - ms : own.return_ns);
    CHECK_FALSE(job.coordinator.waits_for_places());
    CHECK(job.shapes.empty());
    CHECK(job.filled.size() == (comes ? 0 : 1));
    for (const Rank r : {0, 1, comes ? 2 : 3}) job.hear(r, WorkerAddress{"a"}, own.return_ns);
    CHECK(job.last<Connect>().adopt == (comes ? 3 : -1));
    CHECK(job.killed.empty());  // the one that takes the rank has not been silent
  }
}

TEST_CASE("a job whose machines guard for each other gets another plan, of which each part is guarded again") {
  ThreePlaces job(nullptr, 1, false, 3, detects, [](CoordinatorOptions& o) {
    wait_ten_seconds(o);
    o.guard_within = guard_within_least;
  });
  job.machines = {{0, 0}, {1, 1}, {2, 2}, {3, 3}};
  job.enter();
  for (std::int64_t step = 0; step < 5; ++step) job.commit(step);
  job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine c");
  job.coordinator.turn(0);
  job.leave({0, 1});
  job.coordinator.add_place(PlaceId{3}, ms);
  job.coordinator.turn(ms);
  CHECK(job.filled.empty());
  CHECK(job.shapes.size() == 1);
}

TEST_CASE("a place that has said garbage does not come back with what lies in its memory") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  job.machines = {{2, 1}};
  job.do_three_steps();
  job.all_hold({3});
  job.coordinator.distrust(PlaceId{2}, Status(Code::invalid, "garbage"), 0);
  job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine b");
  job.coordinator.turn(0);
  job.leave({0, 1});
  CHECK(job.coordinator.waits_for_places());
  CHECK_FALSE(job.coordinator.waits_for(PlaceId{2}));
}

TEST_CASE("a job that is asked to end within its last steps, and waits for a machine, saves what is there at once") {
  SavedBefore checkpoints;
  ThreePlaces job(&checkpoints, 0, false, 3, detects, [&](CoordinatorOptions& o) {
    wait_ten_seconds(o);
    o.session.steps = 4;
    o.replan = [](const Plan&, std::int64_t places) -> Expected<ChosenPlan> {
      return ChosenPlan{std::make_shared<const Plan>(ThreePlaces::make_plan(places, true, 0)), "fewer", 0, {}};
    };
  });
  lose_two(job);
  REQUIRE(job.coordinator.waits_for_places());
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, ms);
  job.coordinator.turn(ms);
  job.leave({0, 1});
  CHECK(job.shapes.size() == 1);
  for (const Rank r : {0, 1}) job.hear(r, WorkerAddress{"a"}, ms);
  CHECK(job.last<Connect>().adopt == 3);
}

TEST_CASE("a machine that comes and goes again and again before an act does not end the job") {
  ThreePlaces job(nullptr, 0, false, 3, detects, wait_ten_seconds);
  lose_two(job);
  for (int times = 0; times < 6; ++times) {
    CAPTURE(times);
    REQUIRE(job.coordinator.waits_for(PlaceId{2}));
    job.coordinator.comes_back(PlaceId{2}, Versions{3}, ms);
    job.coordinator.turn(ms);
    job.ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine b", ms);
    job.coordinator.turn(ms);
    REQUIRE_FALSE(job.coordinator.over());
    job.leave({0, 1});
  }
  CHECK(job.coordinator.waits_for_places());
}
