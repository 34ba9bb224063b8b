// How a coordinator takes a job from one generation to the next when a place is lost.
#include "tests/runtime/three_places.h"

using namespace three_places;

TEST_CASE("when a place is lost the others leave its generation, it is started anew, and all enter the next one") {
  ThreePlaces job;
  CHECK(job.who<Enter>(2) == RankList{0, 1, 2});
  job.enter();
  for (std::int64_t step = 0; step < 5; ++step) job.commit(step);
  CHECK(job.told == std::vector<std::int64_t>{0, 1, 2, 3});
  job.down(1, 10 * ms);
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.coordinator.generation() == JobGeneration{7, 3});
  CHECK(job.who<Abort>(3) == RankList{0, 2});
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
  job.hear(0, Quiesced{}, 11 * ms);
  job.hear(0, Quiesced{}, 11 * ms);
  CHECK(job.who<Enter>(3).empty());
  job.hear(2, Quiesced{}, 12 * ms);
  CHECK(job.who<Enter>(3) == RankList{0, 1, 2});
  SUBCASE("with the newest version, where all hold it") {
    job.enter({{0, {{4, 5}}}, {1, {{5}}}, {2, {{4, 5}}}}, 20 * ms);
    CHECK(job.last<Connect>().adopt == 5);
    CHECK(job.last<BeginRun>().step == 5);
    CHECK(job.told == std::vector<std::int64_t>{0, 1, 2, 3, 4});
    CHECK(job.incidents.empty());  // before the first act
  }
  SUBCASE("with the newest version, where some hold it and have all of it: the others take it from them") {
    job.enter({{0, {{4, 5}}}, {1, {{4}}}, {2, {{4, 5}}}}, 20 * ms);
    const Connect connect = job.last<Connect>();
    CHECK(connect.adopt == 5);
    CHECK(connect.home.plan.empty());  // of the same plan
    CHECK(connect.home.areas == std::vector<std::string>{"of 0", "", "of 2"});
    CHECK(connect.home.own == std::vector<Rank>{0, 1, 2});
    CHECK(job.last<BeginRun>().step == 5);
  }
  SUBCASE("else with the one before") {
    job.enter({{0, {{4}}}, {1, {{4}}}, {2, {{4}}}}, 20 * ms);
    CHECK(job.last<Connect>().home == StateHome{});
    CHECK(job.last<Connect>().adopt == 4);
    CHECK(job.last<BeginRun>().step == 4);
    job.commit(4);
    job.commit(5);
    CHECK(job.told == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  }
  SUBCASE("a place without parameters holds what the others do") {
    job.enter({{0, {{4, 5}}}, {2, {{4, 5}}}}, 20 * ms);
    CHECK(job.last<Connect>().adopt == 5);
  }
  job.hear(2, Progress{1, false, {}, 0}, 30 * ms);
  REQUIRE(job.incidents.size() == 1);
  const Incident& i = job.incidents[0];
  CHECK(i.cause == "worker 1 was killed");
  CHECK(i.culprit == 1);
  CHECK(i.lost == RankList{1});
  CHECK(i.generation == 3);
  CHECK(i.committed == 5);
  CHECK(i.from == "memory");
  CHECK(i.down_ns == 10 * ms);
  CHECK(i.left_ns == 12 * ms);
  CHECK(i.agreed_ns == 20 * ms);
}

TEST_CASE("the session goes on with the sums of the version that it goes on from") {
  ThreePlaces job;
  job.enter();
  for (std::int64_t step = 0; step < 3; ++step) job.commit(step);
  const SumState newest = job.coordinator.session().sums();
  const SumState before = *job.coordinator.session().sums_of(2);
  CHECK(before.updates == 2);
  job.down(1);
  job.leave({0, 2});
  job.go_on({2});
  CHECK(job.coordinator.session().sums() == before);
  job.commit(2);
  CHECK(job.coordinator.session().sums() == newest);
}

TEST_CASE("what places have said in the generation before is dropped, a vote for the step that is repeated included") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  const ControlFrame late{{7, 2}, encode(FromWorker(job.vote_of(1, 1)))};
  job.down(2);
  job.leave({0, 1});
  job.go_on({0, 1});
  job.coordinator.heard(PlaceId{1}, late, 0);
  for (const Rank r : {0, 2}) job.hear(r, job.vote_of(r, 1));
  CHECK(job.coordinator.committed() == 1);
  job.hear(1, job.vote_of(1, 1));
  CHECK(job.coordinator.committed() == 2);
  job.coordinator.end({}, exit_ok);
  CHECK(job.result().late_messages == 1);
}

TEST_CASE(
    "the memory of a process that may have written anywhere is not used: where no other place has what it had alone, "
    "the job goes on from a checkpoint (CO-5 suspect memory)") {
  for (const bool saved : {false, true}) {
    CAPTURE(saved);
    SavedBefore checkpoints;
    ThreePlaces job(&checkpoints, 1);
    job.enter();
    for (std::int64_t step = 0; step < 4; ++step) job.commit(step);
    if (saved) checkpoints.saved = {"step-2", 2, *job.coordinator.session().sums_of(3)};
    job.down(1, 0, true);
    CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, true}});
    CHECK(job.coordinator.generation().number == 40);  // the claim's
    job.leave({0, 2});
    job.enter({{0, {{3, 4}}}, {1, {{}}}, {2, {{3, 4}}}});
    CHECK(job.last<Connect>().adopt == -1);
    CHECK(job.last<Connect>().restore == (saved ? "step-2" : "checkpoint to begin from"));
    CHECK(job.last<BeginRun>().step == (saved ? 2 : 0));
    for (std::int64_t step = saved ? 2 : 0; step < 6; ++step) job.commit(step);
    CHECK(job.told == std::vector<std::int64_t>{0, 1, 2, 3, 4});  // none twice
    CHECK_FALSE(job.coordinator.over());
  }
}

TEST_CASE("a repeated step that comes out otherwise than it was told ends the job (CO-4 compared)") {
  ThreePlaces job(nullptr, 1);
  job.enter();
  for (std::int64_t step = 0; step < 4; ++step) job.commit(step);
  job.down(1, 0, true);
  job.leave({0, 2});
  job.enter({{0, {{3, 4}}}, {1, {{}}}, {2, {{3, 4}}}});
  for (Rank r = 0; r < 3; ++r) {
    Closed vote = job.vote_of(r, 0);
    if (r == 0) vote.reports[0].values = {1.5};
    job.hear(r, std::move(vote));
  }
  job.commit(1);  // which proves what step 0 has made
  job.coordinator.turn(0);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(says(r.status, "step 0, repeated"));
}

TEST_CASE("a place that does not leave its generation is killed, and its end is of the same incident (CR-3 leaving)") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.down(1, 0);
  job.leave({0});
  job.coordinator.turn(0);  // the wait begins once the places are told
  CHECK(job.coordinator.wakes_ns() == quiesce_wait_ns);
  job.coordinator.turn(quiesce_wait_ns - 1);
  CHECK(job.killed.empty());
  job.coordinator.turn(quiesce_wait_ns);
  CHECK(job.killed == RankList{2});
  job.down(2, quiesce_wait_ns + ms);
  CHECK(job.who<Abort>(4) == RankList{0, 1});
  job.leave({0, 1});
  job.go_on({0, 1});
  job.hear(0, Progress{1, false, {}, 0});
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].lost == RankList{1, 2});
  CHECK(job.incidents[0].culprit == 1);
  CHECK(job.incidents[0].generation == 4);
  CHECK(job.incidents[0].last_down_ns == quiesce_wait_ns + ms);
  CHECK(job.incidents[0].cause ==
        "worker 1 was killed\nthen worker 2 has not left its generation within 500 ms; worker 2 was killed for it");
}

TEST_CASE("a place that is lost before the first step comes back, and the job begins as it would have") {
  for (const int phase : {0, 1, 2}) {  // none has entered; all have; the others are ready
    CAPTURE(phase);
    ThreePlaces job;
    if (phase > 0)
      for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a", std::vector<std::int64_t>()});
    if (phase > 1)
      for (const Rank r : {0, 2}) job.hear(r, Ready{});
    job.down(1);
    CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
    CHECK(job.who<Abort>(3) == RankList{0, 2});
    job.leave({0, 2});
    CHECK(job.who<Enter>(3) == RankList{0, 1, 2});
    job.go_on({});
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
    job.coordinator.down(PlaceId{1}, Status(Code::unavailable, "worker 1 exited with code 6"), ProcessEnd::refused, 0);
    job.coordinator.turn(0);
    CHECK(job.coordinator.over() == !begun);
    if (!begun) CHECK(job.result().exit_code == exit_worker);
  }
}

TEST_CASE("a place that is killed is waited for: its job is not asked meanwhile what it waits for") {
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  ThreePlaces job;
  job.enter();
  for (const std::int64_t step : {0, 1}) job.commit(step, 10 * ms);
  std::int64_t now = 10 * ms;
  for (; now < 10 * ms + budget; now += budget / 8) {
    for (const Rank r : {0, 2}) job.hear(r, Progress{0, false, {}, 0, {}}, now);
    job.coordinator.turn(now);
  }
  job.coordinator.turn(now);
  for (const Rank r : {0, 2}) job.hear(r, Explained{"waits\n"}, now);
  job.coordinator.turn(now);
  CHECK(job.killed == RankList{1});
  const auto asked = job.who<ExplainAll>(2).size();
  for (const auto end = now + budget / 2; now < end; now += budget / 8) {
    for (const Rank r : {0, 2}) job.hear(r, Progress{0, false, {}, 0, {}}, now);
    job.coordinator.turn(now);
  }
  CHECK(job.who<ExplainAll>(2).size() == asked);
  job.down(1, now);
  job.leave({0, 2});
  job.go_on({1, 2});
  job.hear(0, Progress{1, false, {}, 0, {}}, now);
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].culprit == 1);
  CHECK(job.incidents[0].cause.starts_with("worker 1 has said nothing"));
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

TEST_CASE("a process that says what is wrong with it, and ends, is lost for that reason") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.down(2);
  job.leave({0, 1});
  job.hear(1, WorkerFailed{"", Status(Code::exhausted, "no memory is left")});
  job.down(1);
  job.leave({0, 2});
  job.go_on({0, 1});
  job.hear(0, Progress{1, false, {}, 0, {}});
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].cause.find("then worker 1 was killed: worker 1: no memory is left") != std::string::npos);
}

TEST_CASE("a job that stalls before its first step ends with the report, as one that does not recover") {
  ThreePlaces job;
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a", std::vector<std::int64_t>()});
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
    job.down(1);
    if (job.coordinator.over()) break;
    job.leave({0, 2});
    job.go_on({});
    job.hear(0, Progress{1, false, {}, 0, {}});
  }
  CHECK(job.result().exit_code == exit_do_not_requeue);
}

TEST_CASE("a place that is lost after the last step ends no job") {
  SavedBefore checkpoints;
  ThreePlaces late(&checkpoints);
  late.enter();
  late.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);  // after step 2
  for (const std::int64_t step : {0, 1}) late.commit(step);
  for (Rank r = 0; r < 3; ++r) late.hear(r, Closed{late.p.program("digest"), 2, {}, 0});
  REQUIRE(late.coordinator.session().finished());
  late.hear(0, Stopped{});
  late.down(1);
  late.hear(2, Stopped{});
  late.coordinator.turn(0);
  const JobResult r = late.result();
  CHECK(r.exit_code == exit_interrupted);
  CHECK(r.incidents.empty());
  CHECK(late.restarted.empty());
}

TEST_CASE(
    "a checkpoint is committed behind the line of the step that has made its version, and one that was held back as a "
    "place was lost is not (CO-3 held back)") {
  struct Counts final : CommitsAtOnce {
    std::vector<std::int64_t> committed;
    std::vector<std::int64_t>* told = nullptr;
    bool wants(std::int64_t version) const override { return version == 1 || version == 3; }
    void written(std::int64_t version, const std::vector<Report>&, const SumState&) override {
      CHECK(told->back() == version - 1);
      committed.push_back(version);
    }
  } checkpoints;
  ThreePlaces job(&checkpoints);
  checkpoints.told = &job.told;
  job.enter();
  const auto snapshot = [&](std::int64_t version) {
    for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("snapshot"), version, {}, 0});
  };
  job.commit(0);
  snapshot(1);
  CHECK(checkpoints.committed.empty());
  CHECK(job.told.empty());
  job.commit(1);
  CHECK(checkpoints.committed == std::vector<std::int64_t>{1});
  job.commit(2);
  snapshot(3);
  job.down(1);
  job.leave({0, 2});
  job.go_on({3});
  for (const std::int64_t step : {3, 4}) job.commit(step);
  CHECK(checkpoints.committed == std::vector<std::int64_t>{1});
}

TEST_CASE("a job that ends at once still tells the line that it held back") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  CHECK(job.told.empty());
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
  REQUIRE(job.coordinator.over());
  CHECK(job.told == std::vector<std::int64_t>{0});
}

TEST_CASE("steps between incidents count from the version that the job went on from, also where that is an old one") {
  ThreePlaces job(nullptr, 1);
  job.enter();
  for (std::int64_t step = 0; step < 9; ++step) job.commit(step);
  job.down(1, 0, true);
  job.leave({0, 2});
  job.enter({{0, {{8, 9}}}, {1, {{}}}, {2, {{8, 9}}}});  // from the beginning
  for (std::int64_t step = 0; step < 6; ++step) {
    job.commit(step);
    job.down(1);
    REQUIRE_FALSE(job.coordinator.over());
    job.leave({0, 2});
    job.go_on({step + 1});
    job.hear(0, Progress{step + 1, false, {}, 0});
  }
}

TEST_CASE("the third incident in a row without a step ends the job for good; a step in between begins the count anew") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  const auto incident = [&](const std::vector<std::int64_t>& held) {
    job.down(1);
    if (job.coordinator.over()) return;
    job.leave({0, 2});
    job.go_on(held);
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
  CHECK(says(r.status, "3 incidents without a step"));
  CHECK(says(r.status, "worker 1 was killed"));
  CHECK(r.incidents.size() == 5);
  CHECK(r.incidents.back().act_ns == -1);
}

TEST_CASE("an actor that fails is given another chance; one that fails at the same step again ends the job") {
  for (const bool same : {false, true}) {
    CAPTURE(same);
    ThreePlaces job;
    job.enter();
    job.commit(0);
    job.fail(1);
    CHECK(job.who<Abort>(3) == RankList{0, 1, 2});
    CHECK(job.restarted.empty());
    job.leave({0, 1, 2});
    job.go_on({0, 1});
    if (!same) job.commit(1);
    job.fail(1);
    CHECK(job.coordinator.over() == same);
    if (!same) continue;
    const JobResult r = job.result();
    CHECK(r.exit_code == exit_do_not_requeue);
    CHECK(says(r.status, "twice at step 1"));
    CHECK(says(r.status, "the tape is torn"));
  }
}

TEST_CASE("a place that says nothing for the budget is killed, and its end says so (CR-5 silence)") {
  ThreePlaces job;
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  job.enter({}, 0);
  const auto beat = [&](Rank r, std::int64_t now) { job.hear(r, Progress{0, true, {}, 0}, now); };
  for (const Rank r : {0, 2}) beat(r, budget / 2);
  job.coordinator.turn(budget - 1);
  CHECK(job.killed.empty());
  CHECK(job.coordinator.wakes_ns() == budget);
  SUBCASE("while the coordinator's own process was stopped no place was silent") {
    job.coordinator.resumed_after_stop(10 * budget);
    job.coordinator.turn(11 * budget - 1);
    CHECK(job.killed.empty());
  }
  SUBCASE("it is the silent one") {
    job.coordinator.turn(budget);
    job.coordinator.turn(budget + ms);
    CHECK(job.who<ExplainAll>(2) == RankList{0, 1, 2});
    CHECK(job.killed.empty());
    for (const Rank r : {0, 2}) job.hear(r, Explained{"box.a waits for worker 1\n"}, budget + ms);
    job.coordinator.turn(budget + ms);
    CHECK(job.killed == RankList{1});
    job.down(1, budget + 2 * ms);
    job.leave({0, 2});
    job.go_on({0});
    job.hear(0, Progress{1, false, {}, 0}, budget + 3 * ms);
    REQUIRE(job.incidents.size() == 1);
    const std::string& cause = job.incidents[0].cause;
    CHECK(cause.starts_with("worker 1 has said nothing for 2.0 s; worker 1 was killed for it\n"));
    CHECK(cause.find("worker 0:\nbox.a waits for worker 1\nworker 1 does not answer\nworker 2:\n") !=
          std::string::npos);
  }
  SUBCASE("the others do not answer: it is killed after an eighth of the budget") {
    job.coordinator.turn(budget);
    CHECK(job.coordinator.wakes_ns() <= budget + budget / 8);
    job.coordinator.turn(budget + budget / 8 - 1);
    CHECK(job.killed.empty());
    job.coordinator.turn(budget + budget / 8);
    CHECK(job.killed == RankList{1});
  }
  SUBCASE("it speaks while the others are asked: it lives") {
    job.coordinator.turn(budget);
    beat(1, budget + ms);
    job.coordinator.turn(budget + budget / 8);
    CHECK(job.killed.empty());
    CHECK(job.incidents.empty());
  }
  SUBCASE("another place is lost while the others are asked: it is killed at once") {
    job.coordinator.turn(budget);
    job.down(0, budget + ms);
    CHECK(job.killed == RankList{1});
  }
}

TEST_CASE("a place whose act is stuck is killed by the name of the act") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.hear(2, Progress{9, true, "layer1.fwd", 4000});
  CHECK(job.killed.empty());
  for (const Rank r : {0, 1}) job.hear(r, Explained{"waits\n"});
  job.coordinator.turn(0);
  CHECK(job.killed == RankList{2});
  job.down(2);
  job.leave({0, 1});
  job.go_on({0, 1});
  job.hear(0, Progress{1, false, {}, 0});
  CHECK(job.incidents.at(0).cause.starts_with(
      "worker 2, actor 'layer1.fwd': its act has not ended for 4.0 s; worker 2 was killed for it\n"));
}

TEST_CASE(
    "of two places that no ping passes between, and that both reach the job, one is killed once nothing goes on: the "
    "one in more such pairs, then the higher number (CR-7 cut links)") {
  const std::int64_t budget = CoordinatorOptions().detect_ns, beat = budget / 8;
  struct Case {
    std::vector<std::vector<Rank>> unheard;  // by place
    RankList killed;
    std::string cause;
  };
  for (const Case& c : {Case{{{1}, {0}, {}}, {1}, "worker 1 and worker 0 do not reach each other"},
                        {{{}, {}, {0}}, {}, ""},  // one end says so: it may have been stopped itself
                        {{{1, 2}, {0}, {0}}, {0}, "worker 0 and worker 1, worker 2 do not reach each other"},
                        {{{}, {}, {}}, {}, ""},
                        {{{0}, {7}, {-1}}, {}, ""}}) {  // none of a peer
    CAPTURE(c.cause);
    ThreePlaces job;
    job.enter();
    job.commit(0, 10 * ms);
    job.commit(1, 20 * ms);
    std::int64_t now = 20 * ms;
    const auto beats = [&](std::int64_t to) {
      for (; now < to; now += beat) {
        for (Rank r = 0; r < 3; ++r)
          job.hear(r, Progress{0, false, {}, 0, c.unheard[static_cast<std::size_t>(r)]}, now);
        job.coordinator.turn(now);
      }
    };
    beats(20 * ms + budget / 2);
    CHECK(job.killed.empty());
    beats(20 * ms + budget / 2 + beat);
    CHECK(job.killed.empty());
    for (Rank r = 0; r < 3; ++r) job.hear(r, Explained{"waits\n"}, now);
    job.coordinator.turn(now);
    CHECK(job.killed == c.killed);
    if (c.killed.empty()) continue;
    const Rank lost = c.killed[0], other = lost == 0 ? 1 : 0, third = 3 - lost - other;
    job.down(lost, now);
    job.leave({other, third});
    job.go_on({1, 2});
    job.hear(0, Progress{1, false, {}, 0, {}}, now);
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].culprit == lost);
    CHECK(job.incidents[0].cause.starts_with(
        fmt::format("{}, though both are heard here; worker {} was killed for it\n", c.cause, lost)));
  }
}

TEST_CASE("of two places that do not reach each other the one goes that was lost more often (CR-7 cut links)") {
  const std::int64_t budget = CoordinatorOptions().detect_ns, beat = budget / 8;
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.down(1);
  job.leave({0, 2});
  job.go_on({0, 1});
  std::int64_t now = 10 * ms;
  job.commit(1, now);
  job.commit(2, now);
  for (; now < budget; now += beat)
    for (Rank r = 0; r < 3; ++r) {
      job.hear(r, Progress{0, false, {}, 0, r == 0 ? RankList{} : RankList{3 - r}}, now);
      job.coordinator.turn(now);
    }
  job.coordinator.turn(now);
  CHECK(job.killed == RankList{1});
}

TEST_CASE("a link that is cut while places enter is found as well: they may restore a checkpoint (CR-7 cut links)") {
  const std::int64_t beat = CoordinatorOptions().detect_ns / 8, second = 1000 * ms;
  ThreePlaces job;
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a", std::vector<std::int64_t>()});
  for (std::int64_t now = 0; now < 61 * second; now += beat) {
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{0, false, {}, 0, r < 2 ? RankList{1 - r} : RankList{}}, now);
    job.coordinator.turn(now);
    if (now < 60 * second) REQUIRE(job.killed.empty());
  }
  CHECK(job.killed == RankList{1});
}

TEST_CASE("a place that all peers and the job miss is silent, not cut off; where work goes on no link is looked at") {
  const std::int64_t budget = CoordinatorOptions().detect_ns, beat = budget / 8;
  ThreePlaces job;
  job.enter();
  job.commit(0, 10 * ms);
  job.commit(1, 20 * ms);
  std::int64_t acts = 1;
  const auto beats = [&](std::int64_t from, std::int64_t to, bool works, bool all) {
    for (std::int64_t now = from; now < to; now += beat) {
      acts += works ? 1 : 0;
      job.hear(0, Progress{acts, false, {}, 0, {2}}, now);
      job.hear(1, Progress{1, false, {}, 0, {2}}, now);
      if (all) job.hear(2, Progress{1, false, {}, 0, {0, 1}}, now);
      job.coordinator.turn(now);
    }
  };
  beats(20 * ms, budget, true, true);
  CHECK(job.killed.empty());
  beats(budget, 2 * budget - beat, false, false);
  CHECK(job.killed.empty());
  job.hear(0, Progress{acts, false, {}, 0, {2}}, 2 * budget - beat);
  job.hear(1, Progress{1, false, {}, 0, {2}}, 2 * budget - beat);
  job.coordinator.turn(2 * budget);
  job.coordinator.turn(2 * budget + beat);
  CHECK(job.killed == RankList{2});
}

TEST_CASE("where more places compute than there are processors, none is named slow") {
  int named = 0;
  for (const std::int64_t at_once : {2, 3}) {
    ThreePlaces job(nullptr, 0, false, at_once);
    job.on_straggler = [&](const Straggler&) { ++named; };
    job.enter();
    for (std::int64_t step = 0; step < 14; ++step)
      for (Rank r = 0; r < 3; ++r) {
        Closed vote = job.vote_of(r, step);
        vote.busy_ns = r == 1 ? 900 * ms : 300 * ms;
        job.hear(r, vote, step * 1000 * ms);
      }
    CHECK(named == (at_once == 3 ? 1 : 0));
  }
}

TEST_CASE("a place that computes far longer than its replicas is named, and goes on") {
  std::vector<Straggler> named;
  ThreePlaces job;
  job.on_straggler = [&](const Straggler& s) { named.push_back(s); };
  job.enter();
  for (std::int64_t step = 0; step < 14; ++step) {
    for (Rank r = 0; r < 3; ++r) {
      Closed vote = job.vote_of(r, step);
      vote.busy_ns = r == 1 ? 900 * ms : 300 * ms;
      job.hear(r, vote, step * 1000 * ms);
    }
    CHECK(job.coordinator.committed() == step + 1);
  }
  REQUIRE(named.size() == 1);
  CHECK(named[0].place == 1);
  CHECK(named[0].times == doctest::Approx(3));
  CHECK(named[0].step == 13);
  CHECK(job.coordinator.state().places[1].slow_times == doctest::Approx(3));
  CHECK(job.coordinator.state().places[0].slow_times == 0);
  CHECK(job.killed.empty());
  // The next generation: it is named no second time, and what takes the place of another is another process.
  job.down(2);
  job.leave({0, 1});
  job.go_on({13, 14});
  for (std::int64_t step = 14; step < 40; ++step)
    for (Rank r = 0; r < 3; ++r) {
      Closed vote = job.vote_of(r, step);
      vote.busy_ns = r == 1 ? 900 * ms : 300 * ms;
      if (step < 20) job.hear(r, vote, step * 1000 * ms);
    }
  CHECK(named.size() == 1);
  job.down(1);
  CHECK(job.coordinator.state().places[1].slow_times == 0);
}

TEST_CASE(
    "where nothing runs and nothing comes, the places are asked, and the job goes on; where an act runs it waits for "
    "the stall limit") {
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  for (const bool busy : {false, true}) {
    CAPTURE(busy);
    ThreePlaces job;
    job.enter();
    job.commit(0, 10 * ms);
    job.commit(1, 20 * ms);
    std::int64_t now = 20 * ms;
    for (; now < 20 * ms + budget; now += budget / 8)
      for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{0, busy && r == 1, {}, 0}, now);
    job.coordinator.turn(20 * ms + budget);
    CHECK(job.who<ExplainAll>(2) == (busy ? RankList{} : RankList{0, 1, 2}));
    if (busy) continue;
    for (Rank r = 0; r < 3; ++r) job.hear(r, Explained{"box.a waits for a message\n"}, now);
    job.coordinator.turn(now);
    CHECK_FALSE(job.coordinator.over());
    CHECK(job.who<Abort>(3) == RankList{0, 1, 2});
    job.leave({0, 1, 2});
    job.go_on({1, 2});
    job.hear(0, Progress{1, false, {}, 0}, now);
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].culprit == -1);
    CHECK(job.incidents[0].cause.find("box.a waits for a message") != std::string::npos);
  }
}

TEST_CASE(
    "places that are lost in one turn are one generation, and a process that is being started has time to speak") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  for (const Rank r : {0, 2})
    job.coordinator.down(PlaceId{r}, Status(Code::unavailable, "lost"), ProcessEnd::ordinary, 0);
  job.coordinator.turn(0);
  CHECK(job.coordinator.generation().number == 3);
  CHECK(job.who<Abort>(3) == RankList{1});
  CHECK(job.restarted.size() == 2);
  // Another one is lost while they start: they are told to leave, and are not killed if they take their time.
  job.down(1, ms);
  job.coordinator.turn(ms);
  job.coordinator.turn(ms + quiesce_wait_ns);
  CHECK(job.killed.empty());
  job.coordinator.turn(start_wait_ns + CoordinatorOptions().detect_ns - 1);
  CHECK(job.killed.empty());
  job.coordinator.turn(ms + start_wait_ns + CoordinatorOptions().detect_ns);
  CHECK(job.killed == RankList{0, 1, 2});
}

TEST_CASE("gaps that the job has had before are no stall: eight times the longest may pass") {
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  ThreePlaces job;
  job.enter();
  job.commit(0, 10 * ms);
  job.commit(1, 10 * ms + budget);  // a message that takes long
  const std::int64_t limit = 10 * ms + budget + 8 * budget;
  for (std::int64_t now = 10 * ms + budget; now < limit; now += budget / 8)
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{0, false, {}, 0}, now);
  job.coordinator.turn(limit - 1);
  CHECK(job.who<ExplainAll>(2).empty());
  job.coordinator.turn(limit);
  CHECK(job.who<ExplainAll>(2) == RankList{0, 1, 2});
}

TEST_CASE("a job that is asked to end while it recovers ends with the version that it would have ended with") {
  SavedBefore checkpoints;
  ThreePlaces job(&checkpoints);
  job.enter();
  job.commit(0);
  job.down(1);
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.coordinator.pause().version() == 3);
  job.leave({0, 2});
  job.go_on({0, 1});
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

TEST_CASE("a place that hangs when the results are known is killed, and the job ends well (CR-5 silence)") {
  ThreePlaces job;
  job.enter();
  for (std::int64_t step = 0; step < 20; ++step) job.commit(step);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 20, {}, 0});
  REQUIRE(job.coordinator.session().finished());
  for (const Rank r : {0, 2}) job.hear(r, Stopped{});
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  CHECK(job.coordinator.wakes_ns() == budget);
  job.coordinator.turn(budget - 1);
  CHECK(job.killed.empty());
  job.coordinator.turn(budget);
  CHECK(job.killed == RankList{1});
  job.down(1, budget);
  const JobResult r = job.result();
  CHECK(r.status.ok());
  CHECK(r.committed_steps == 20);
  CHECK(r.incidents.empty());
}
