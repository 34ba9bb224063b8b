// How a coordinator takes a job from one generation to the next when a place is lost.
#include "tests/runtime/three_places.h"

using namespace three_places;

namespace {

const CoordinatorWaits waits(CoordinatorOptions().detect_ns);

}  // namespace

TEST_CASE("what the coordinator waits for takes a part of the detect budget, and never too little for a busy machine") {
  constexpr CoordinatorWaits longer(8'000'000'000), short_(100'000'000);
  CHECK(waits.culprit_ns == 700 * ms);
  CHECK(waits.explain_ns == 1000 * ms);
  CHECK(waits.quiesce_ns == 500 * ms);
  CHECK(longer.culprit_ns == 2800 * ms);
  CHECK(longer.explain_ns == 4000 * ms);
  CHECK(longer.quiesce_ns == 2000 * ms);
  CHECK(longer.start_ns == 80'000 * ms);
  CHECK(longer.killed_ns == 40'000 * ms);
  CHECK(short_.killed_ns == 30'000 * ms);
  CHECK(short_.quiesce_ns == 500 * ms);
  CHECK(short_.start_ns == 20'000 * ms);
  CHECK(CoordinatorWaits(600'000 * ms).culprit_ns == 10'000 * ms);
  CHECK(CoordinatorWaits(0).quiesce_ns == waits.quiesce_ns);
  ThreePlaces job(nullptr, 0, false, 3, 8'000 * ms);
  job.enter();
  job.commit(0);
  job.down(1, 0);
  job.coordinator.turn(0);
  CHECK(job.coordinator.wakes_ns() == longer.quiesce_ns);
  job.coordinator.turn(longer.quiesce_ns - 1);
  CHECK(job.killed.empty());
  job.coordinator.turn(longer.quiesce_ns);
  CHECK(job.killed == std::vector<Rank>{0, 2});
}

TEST_CASE("when a place is lost the others leave its generation, it is started anew, and all enter the next one") {
  ThreePlaces job;
  CHECK(job.who<Enter>(2) == RankList{0, 1, 2});
  job.enter();
  for (std::int64_t step = 0; step < 5; ++step) job.commit(step);
  CHECK(job.told == std::vector<std::int64_t>{0, 1, 2, 3});
  job.holds = {{0, Versions{4, 5}}, {1, Versions{5}}, {2, Versions{4, 5}}};
  std::int64_t goes_on_from = 5;
  StateHome home;
  SUBCASE("with the newest version, where all hold it") {}
  SUBCASE("with the newest version, where some hold it and have all of it: the others take it from them") {
    job.holds[1] = Versions{4};
    home = {{}, {"of 0", "", "of 2"}, {0, 1, 2}};  // of the same plan
  }
  SUBCASE("else with the one before") {
    job.all_hold({4});
    goes_on_from = 4;
  }
  SUBCASE("a place without parameters holds what the others do") { job.holds[1].reset(); }
  job.down(1, 10 * ms);
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.coordinator.generation() == JobGeneration{7, 3});
  CHECK(job.who<Abort>(3) == RankList{0, 2});
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
  for (int times = 0; times < 2; ++times) job.hear(0, Quiesced{job.holds[0]}, 11 * ms);
  CHECK(job.who<Enter>(3).empty());
  job.hear(2, Quiesced{job.holds[2]}, 12 * ms);
  CHECK(job.who<Enter>(3) == RankList{0, 1, 2});
  job.enter(20 * ms);
  CHECK(job.last<Connect>().adopt == goes_on_from);
  CHECK(job.last<Connect>().home == home);
  CHECK(job.last<BeginRun>().step == goes_on_from);
  CHECK(job.incidents.empty());  // before the first act
  CHECK(std::ssize(job.told) == goes_on_from);
  if (goes_on_from == 4) {
    job.commit(4);
    job.commit(5);
    CHECK(job.told == std::vector<std::int64_t>{0, 1, 2, 3, 4});
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
  job.do_three_steps();
  const SumState newest = job.coordinator.session().sums();
  const SumState before = *job.coordinator.session().sums_of(2);
  CHECK(before.updates == 2);
  job.all_hold({2});
  job.down(1);
  job.leave({0, 2});
  job.enter();
  CHECK(job.coordinator.session().sums() == before);
  job.commit(2);
  CHECK(job.coordinator.session().sums() == newest);
}

TEST_CASE("what places have said in the generation before is dropped, a vote for the step that is repeated included") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  const ControlFrame late{{7, 2}, encode(FromWorker(job.vote_of(1, 1)))};
  job.all_hold({0, 1});
  job.down(2);
  job.leave({0, 1});
  job.enter();
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
    job.all_hold({3, 4});
    job.down(1, 0, true);
    CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, true}});
    CHECK(job.coordinator.generation().number == 40);  // the claim's
    job.leave({0, 2});
    job.enter();
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
  job.all_hold({3, 4});
  job.down(1, 0, true);
  job.leave({0, 2});
  job.enter();
  for (Rank r = 0; r < 3; ++r) {
    Closed vote = job.vote_of(r, 0);
    if (r == 0) vote.reports[0].values = {1.5};
    job.hear(r, std::move(vote));
  }
  job.commit(1);  // which proves what step 0 has made
  job.coordinator.turn(0);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(says(r.status, "step 0, which is repeated"));
}

TEST_CASE("a place that does not leave its generation is killed, and its end is of the same incident (CR-3 leaving)") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.all_hold({0, 1});
  job.down(1, 0);
  job.leave({0});
  job.coordinator.turn(0);  // the wait begins once the places are told
  CHECK(job.coordinator.wakes_ns() == waits.quiesce_ns);
  job.coordinator.turn(waits.quiesce_ns - 1);
  CHECK(job.killed.empty());
  job.coordinator.turn(waits.quiesce_ns);
  CHECK(job.killed == RankList{2});
  job.down(2, waits.quiesce_ns + ms);
  CHECK(job.who<Abort>(4) == RankList{0, 1});
  job.leave({0, 1});
  job.enter();
  job.hear(0, Progress{1, false, {}, 0});
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].lost == RankList{1, 2});
  CHECK(job.incidents[0].culprit == 1);
  CHECK(job.incidents[0].generation == 4);
  CHECK(job.incidents[0].last_down_ns == waits.quiesce_ns + ms);
  CHECK(job.incidents[0].cause ==
        "worker 1 was killed\nthen worker 2 has not left its generation within 500 ms; worker 2 was killed for it");
}

TEST_CASE("a process that says what is wrong with it, and ends, is lost for that reason") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.all_hold({0, 1});
  job.down(2);
  job.leave({0, 1});
  job.hear(1, WorkerFailed{"", Status(Code::exhausted, "no memory is left")});
  job.down(1);
  job.leave({0, 2});
  job.enter();
  job.hear(0, Progress{1, false, {}, 0, {}});
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].cause.find("then worker 1 was killed: worker 1: no memory is left") != std::string::npos);
}

TEST_CASE("a place that says what no place says is killed, and its memory is not used") {
  struct What {
    const char* name;
    std::function<void(ThreePlaces&)> say;
    const char* why;
  };
  const std::vector<std::byte> garbage(100, std::byte{0xff});
  for (const auto& what : {
           What{"no message",
                [&](ThreePlaces& job) {
                  job.coordinator.heard(PlaceId{1}, {job.coordinator.generation(), garbage}, 0);
                },
                "worker 1: "},
           What{"that it has stopped", [](ThreePlaces& job) { job.hear(1, Stopped{}); },
                "worker 1 has stopped before it was told to"},
           What{"that a program has closed which there is not",
                [](ThreePlaces& job) {
                  job.hear(1, Closed{99, 1, {}, 0});
                },
                "99"},
       }) {
    CAPTURE(what.name);
    ThreePlaces job(nullptr, 1);  // the moments of a place are with it alone
    job.enter();
    job.commit(0);
    what.say(job);
    REQUIRE_FALSE(job.coordinator.over());
    CHECK(job.killed == RankList{1});
    what.say(job);  // more of the same
    CHECK(job.killed == RankList{1});
    job.all_hold({0, 1});
    job.down(1);
    CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, true}});  // afresh
    job.leave({0, 2});
    job.enter();
    job.hear(0, Progress{1, false, {}, 0, {}});
    REQUIRE(job.incidents.size() == 1);
    CHECK_MESSAGE(job.incidents[0].cause.find(what.why) != std::string::npos, job.incidents[0].cause);
    CHECK(job.incidents[0].culprit == 1);
  }
}

TEST_CASE("a place that was to be killed for something else, and says what no place says, is suspect as well") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.hear(1, Progress{1, true, "in.x", 5000, {}});
  CHECK(job.killed.empty());  // the others are asked first
  job.hear(1, Stopped{});
  job.coordinator.turn(CoordinatorOptions().detect_ns / 8);
  CHECK(job.killed == RankList{1});
  job.down(1);
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, true}});
}

TEST_CASE("where the newest checkpoint is damaged the job goes on from the one before it, and loses no place for it") {
  for (const bool ends_late : {false, true}) {
    CAPTURE(ends_late);
    SavedBefore checkpoints;
    checkpoints.saved = SavedVersion{"the newer", 2, {}};
    checkpoints.older = SavedVersion{"the older", 1, {}};
    ThreePlaces job(&checkpoints, 1);
    job.enter();
    for (const std::int64_t step : {0, 1, 2}) job.commit(step);
    for (Rank r : {0, 1, 2}) job.ends(r, ProcessEnd::Kind::suspect, "crashed");
    job.coordinator.turn(0);
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
    REQUIRE_FALSE(job.coordinator.over());
    CHECK(std::get<Connect>(job.sent.back().message).restore == "the newer");
    const auto end = [&](Rank r) { job.ends(r, ProcessEnd::Kind::refused, "exited"); };
    for (Rank r : {2, 0}) {
      job.hear_in_batch(r, WorkerFailed{"", Status(Code::damaged, "block 0")});
      if (!ends_late) end(r);
    }
    job.coordinator.turn(0);
    if (ends_late)
      for (Rank r : {2, 0}) end(r);
    job.coordinator.turn(0);
    REQUIRE_FALSE(job.coordinator.over());
    job.leave({1});
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
    CHECK(std::get<Connect>(job.sent.back().message).restore == "the older");
    for (Rank r = 0; r < 3; ++r) job.hear(r, Ready{});
    job.hear(0, Progress{1, false, {}, 0, {}});
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].version == 1);
    CHECK(job.incidents[0].from == "the older");
  }
}

TEST_CASE("a job whose inputs are not what they were ends where it would go on in its next generation") {
  ThreePlaces job;
  job.inputs_unchanged = Status(Code::io, "the text was replaced");
  job.enter();
  job.commit(0);
  REQUIRE_FALSE(job.coordinator.over());
  job.down(1);
  const JobResult r = job.result();
  CHECK(r.status.message() == "the text was replaced");
  CHECK(job.restarted.empty());
  REQUIRE(job.incidents.size() == 1);  // that it has ended in
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
    "a checkpoint is committed behind the line of the step that has made its version, also one that was held back as a "
    "place was lost (CO-3 held back)") {
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
  CHECK(checkpoints.committed == std::vector<std::int64_t>{1});
  job.all_hold({3});
  job.down(1);
  CHECK(checkpoints.committed == std::vector<std::int64_t>{1, 3});
  job.leave({0, 2});
  job.enter();
  for (const std::int64_t step : {3, 4}) job.commit(step);
  CHECK(checkpoints.committed == std::vector<std::int64_t>{1, 3});
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

TEST_CASE(
    "places that are lost in one turn are one generation, and a process that is being started has time to speak") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  for (const Rank r : {0, 2}) job.ends(r, ProcessEnd::Kind::ordinary, "lost");
  job.coordinator.turn(0);
  CHECK(job.coordinator.generation().number == 3);
  CHECK(job.who<Abort>(3) == RankList{1});
  CHECK(job.restarted.size() == 2);
  // Another one is lost while they start: they are told to leave, and are not killed if they take their time.
  job.down(1, ms);
  job.coordinator.turn(ms);
  job.coordinator.turn(ms + waits.quiesce_ns);
  CHECK(job.killed.empty());
  job.coordinator.turn(waits.start_ns + CoordinatorOptions().detect_ns - 1);
  CHECK(job.killed.empty());
  job.coordinator.turn(ms + waits.start_ns + CoordinatorOptions().detect_ns);
  CHECK(job.killed == RankList{0, 1, 2});
}

TEST_CASE("places that leave as the coordinator was stopped have their time from then on (CR-3 leaving)") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.down(1);
  job.coordinator.turn(0);
  job.coordinator.resumed_after_stop(5'000 * ms);
  job.coordinator.turn(5'000 * ms);
  CHECK(job.killed.empty());
  job.coordinator.turn(5'000 * ms + waits.quiesce_ns);
  CHECK(job.killed == RankList{0, 2});
}

TEST_CASE("a job goes on from no version behind one that is still evaluated (CO-6 readers)") {
  for (const bool evaluated : {false, true}) {
    CAPTURE(evaluated);
    ThreePlaces job;
    if (evaluated) job.evaluated = 1;
    job.enter();
    for (const std::int64_t step : {0, 1}) job.commit(step);
    job.all_hold({1, 2});
    job.down(1);
    job.leave({0, 2});
    job.enter();
    CHECK(job.last<Connect>().adopt == (evaluated ? 1 : 2));
  }
}

TEST_CASE("what places say behind a loss, before the job leaves its generation, does not end the incident") {
  for (const bool process : {false, true}) {
    CAPTURE(process);
    ThreePlaces job;
    job.do_three_steps();
    job.all_hold({2, 3});
    if (process) job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
    else job.hear_in_batch(1, WorkerFailed{"in.x", Status(Code::io, "the tape is torn")});
    job.hear_in_batch(0, Progress{7, false, {}, 0, {}});
    job.hear_in_batch(2, job.vote_of(2, 3));
    CHECK(job.incidents.empty());
    job.coordinator.turn(0);
    REQUIRE(job.coordinator.generation().number == 3);
    if (process) job.leave({0, 2});
    else job.leave({0, 1, 2});
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
    CHECK(job.last<Connect>().adopt == 3);
    CHECK(job.incidents.empty());
    for (Rank r = 0; r < 3; ++r) job.hear(r, Ready{});
    job.hear(0, Progress{8, false, {}, 0, {}});
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].version == 3);
  }
}

TEST_CASE("a job whose inputs were replaced ends with exit_data where a place is lost") {
  ThreePlaces job;
  job.inputs_unchanged = Status(Code::io, "the text was replaced");
  job.enter();
  job.commit(0);
  job.down(1);
  CHECK(job.result().exit_code == exit_data);
}

TEST_CASE("a process that could not restore a damaged checkpoint is replaced, where no lost place is, too") {
  SavedBefore checkpoints;
  checkpoints.saved = SavedVersion{"the newer", 2, {}};
  checkpoints.older = SavedVersion{"the older", 1, {}};
  ThreePlaces job(&checkpoints, 1, true);
  job.do_three_steps();
  job.down(2, 0, true);
  job.leave({0, 1});
  for (Rank r : {0, 1}) job.hear(r, WorkerAddress{"a"});
  REQUIRE(job.last<Connect>().restore == "the newer");
  job.hear(0, WorkerFailed{"", Status(Code::damaged, "block 0")});
  job.ends(0, ProcessEnd::Kind::refused, "exited");
  job.coordinator.turn(0);
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{0, false}});
  CHECK(job.coordinator.available().size() == 2);
}

TEST_CASE("a place that is slow to leave is replaced, where no lost place is, too") {
  ThreePlaces job(nullptr, 0, true);
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.fail(0);
  job.leave({0, 2});
  std::int64_t now = 0;
  for (; job.killed.empty() && now < 120'000 * ms; now += 100 * ms) {
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{0, false, {}, 0}, now);
    job.coordinator.turn(now);
  }
  REQUIRE(job.killed == RankList{1});
  job.down(1, now);
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
  CHECK(job.coordinator.available().size() == 3);
}

TEST_CASE("a suspicion of the generation that is left counts for none in the next") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.hear(0, WorkerFailed{"in.x", Status(Code::unavailable, "the link to worker 1 is cut")});
  job.down(1);
  CHECK(job.coordinator.generation().number == 3);
  job.leave({0, 2});
  job.enter();
  job.coordinator.turn(CoordinatorWaits(CoordinatorOptions().detect_ns).culprit_ns + ms);
  CHECK(job.coordinator.generation().number == 3);
}

TEST_CASE("where the checkpoint before is damaged as well the job goes on from where it began") {
  SavedBefore checkpoints;
  checkpoints.saved = SavedVersion{"the newer", 2, {}};
  checkpoints.older = SavedVersion{"the older", 1, {}};
  ThreePlaces job(&checkpoints, 1);
  job.do_three_steps();
  for (Rank r : {0, 1, 2}) job.ends(r, ProcessEnd::Kind::suspect, "crashed");
  job.coordinator.turn(0);
  for (const char* from : {"the newer", "the older"}) {
    for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
    CHECK(job.last<Connect>().restore == from);
    const Rank r = from == std::string("the newer") ? 2 : 0;
    job.hear(r, WorkerFailed{"", Status(Code::damaged, "block 0")});
    job.ends(r, ProcessEnd::Kind::refused, "exited");
    job.coordinator.turn(0);
    REQUIRE_FALSE(job.coordinator.over());
    job.leave({0, 1, 2});
  }
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  CHECK(job.last<Connect>().restore == "checkpoint to begin from");
}
