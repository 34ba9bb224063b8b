// How a coordinator takes a job from one generation to the next when a place is lost.
#include <doctest/doctest.h>

#include <map>

#include "runtime/elastic/coordinator.h"
#include "tests/runtime/planted_votes.h"

using namespace planted_votes;

namespace {

constexpr std::int64_t ms = 1'000'000;

/// Checkpoints that a test has saved.
struct SavedBefore final : CommitsAtOnce {
  std::optional<SavedVersion> saved;
  std::uint32_t next = 40;
  bool wants(std::int64_t) const override { return false; }
  void written(std::int64_t, const std::vector<Report>&, const SumState&) override {}
  Expected<std::uint32_t> next_generation(std::uint32_t) override { return next++; }
  std::optional<SavedVersion> newest() const override { return saved; }
};

/// A job of three places that recovers; they say what a test lets them say.
struct ThreePlaces final : CoordinatorSink {
  Plan p;
  struct Sent {
    Rank to;
    std::uint32_t generation;
    ToWorker message;
  };
  std::vector<Sent> sent;
  std::vector<std::pair<Rank, bool>> restarted;
  std::vector<Rank> killed;
  std::vector<Incident> incidents;
  std::vector<std::int64_t> told;  // steps
  Coordinator coordinator;

  /// `zero` 1: each place alone has a third of the moments.
  explicit ThreePlaces(JobCheckpoints* checkpoints = nullptr, std::int32_t zero = 0, bool replans = false)
      : p(make_plan(3, checkpoints != nullptr, zero)), coordinator(p, options(replans), checkpoints, *this) {
    coordinator.enter({7, 2});
    coordinator.started(0);
  }
  static Plan make_plan(std::int64_t dp, bool saves, std::int32_t zero) {
    CompileOptions o;
    o.stages = stage_meshes({dp});
    o.zero = zero;
    o.keeps_version = true;
    o.snapshots = saves ? 2 : 0;
    auto plan = compile(graph(ops(), {}), o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    return *std::move(plan);
  }
  CoordinatorOptions options(bool replans) {
    CoordinatorOptions o;
    o.session.steps = 20;
    o.session.on_step = [this](const StepResult& r) { told.push_back(r.step); };
    o.recovers = true;
    o.restore = "checkpoint to begin from";
    o.on_incident = [this](const Incident& i) { incidents.push_back(i); };
    if (replans)
      o.replan = [](const Plan&, std::int64_t places) -> Expected<ChosenPlan> {
        if (places < 1) return invalid("nothing is left");
        return ChosenPlan{std::make_shared<const Plan>(make_plan(places, false, 1)), "fewer", 0, {"another: slower"}};
      };
    return o;
  }
  void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& m) override {
    for (const PlaceId place : to) sent.push_back({static_cast<Rank>(place), of.number, m});
  }
  Status with_last_log_lines(PlaceId, const Status& s) override { return s; }
  Status restart(PlaceId place, bool afresh) override {
    restarted.push_back({static_cast<Rank>(place), afresh});
    return {};
  }
  void kill(PlaceId place) override { killed.push_back(static_cast<Rank>(place)); }
  std::vector<std::vector<PlaceId>> shapes;           // that were told
  std::map<PlaceId, std::vector<std::int64_t>> left;  // versions in the memory of a place
  int settled_ = 0;
  Status reshape(const Plan&, std::span<const PlaceId> places) override {
    shapes.emplace_back(places.begin(), places.end());
    return {};
  }
  std::optional<std::vector<std::int64_t>> held(PlaceId place, const Plan&, Rank) override { return left[place]; }
  std::string memory_of(PlaceId place) override { return "of " + std::to_string(static_cast<Rank>(place)); }
  void settled() override { ++settled_; }

  void hear(Rank from, FromWorker m, std::int64_t now_ns = 0) {
    coordinator.heard(PlaceId{from}, {coordinator.generation(), encode(m)}, now_ns);
  }
  void down(Rank place, std::int64_t now_ns = 0, bool suspect = false) {
    coordinator.down(PlaceId{place}, Status(Code::unavailable, "worker " + std::to_string(place) + " was killed"),
                     suspect ? ProcessEnd::suspect : ProcessEnd::ordinary, now_ns);
    coordinator.turn(now_ns);
  }
  void fail(Rank r) {
    hear(r, WorkerFailed{"in.x", Status(Code::io, "the tape is torn")});
    coordinator.turn(0);
  }
  using Versions = std::optional<std::vector<std::int64_t>>;
  void enter(std::map<Rank, Versions> held = {}, std::int64_t now_ns = 0) {
    for (Rank r = 0; r < 3; ++r) hear(r, WorkerAddress{"a", held.count(r) ? held[r] : Versions()}, now_ns);
    for (Rank r = 0; r < 3; ++r) hear(r, Ready{}, now_ns);
  }
  void leave(std::initializer_list<Rank> places) {
    for (const Rank r : places) hear(r, Quiesced{});
  }
  /// All places hold these versions, and go on.
  void go_on(const std::vector<std::int64_t>& versions) { enter({{0, versions}, {1, versions}, {2, versions}}); }
  Closed vote_of(Rank r, std::int64_t step) const {
    Closed c{p.step_program, step, {}, 0, planted_votes::told(p, r, 1, 1e-3f)};
    if (r == 0) c.reports.push_back({Report::Kind::loss, "loss", step, 0, {1}});
    return c;
  }
  void commit(std::int64_t step, std::int64_t now_ns = 0) {
    for (Rank r = 0; r < 3; ++r) hear(r, vote_of(r, step), now_ns);
    REQUIRE_MESSAGE(coordinator.committed() == step + 1, step);
  }
  template <class T>
  std::vector<Rank> who(std::uint32_t generation) const {
    std::vector<Rank> out;
    for (const Sent& s : sent)
      if (s.generation == generation && std::holds_alternative<T>(s.message)) out.push_back(s.to);
    return out;
  }
  template <class T>
  const T& last() const {
    for (auto it = sent.rbegin(); it != sent.rend(); ++it)
      if (const T* m = std::get_if<T>(&it->message)) return *m;
    FAIL("no such message was sent");
    return std::get<T>(sent.front().message);
  }
  JobResult result() {
    REQUIRE(coordinator.over());
    return coordinator.take_result();
  }
};

using RankList = std::vector<Rank>;

}  // namespace

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
        "worker 1 was killed\nthen worker 2 has not left its generation within 500 ms, and was killed for it");
}

TEST_CASE("a place that is lost before the first step ends the job; one that is lost after the last one does not") {
  ThreePlaces early;
  early.down(1);
  CHECK(early.result().exit_code == exit_worker);
  CHECK(early.restarted.empty());
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
    CHECK(job.killed == RankList{1});
    job.down(1, budget + 2 * ms);
    job.leave({0, 2});
    job.go_on({0});
    job.hear(0, Progress{1, false, {}, 0}, budget + 3 * ms);
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].cause == "worker 1 has said nothing for 2.0 s, and was killed for it");
  }
}

TEST_CASE("a place whose act is stuck is killed by the name of the act") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.hear(2, Progress{9, true, "layer1.fwd", 4000});
  CHECK(job.killed == RankList{2});
  job.down(2);
  job.leave({0, 1});
  job.go_on({0, 1});
  job.hear(0, Progress{1, false, {}, 0});
  CHECK(job.incidents.at(0).cause ==
        "worker 2, actor 'layer1.fwd': its act has not ended for 4.0 s, and was killed for it");
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

TEST_CASE(
    "places that are gone for good are not started again: the others go on with another plan, each with most of its "
    "state") {
  ThreePlaces job(nullptr, 1, true);
  job.enter();
  for (std::int64_t step = 0; step < 3; ++step) job.commit(step);
  job.down(1, 10 * ms);
  CHECK(job.who<Abort>(3) == RankList{0, 2});
  CHECK(job.restarted.empty());
  job.left = {{PlaceId{0}, {2, 3}}, {PlaceId{1}, {2}}, {PlaceId{2}, {2, 3}}};
  job.leave({0, 2});
  REQUIRE(job.shapes == std::vector<std::vector<PlaceId>>{{PlaceId{0}, PlaceId{2}}});
  CHECK(job.who<Enter>(3) == RankList{0, 2});
  CHECK(job.coordinator.plan().workers() == 2);
  for (const Rank place : {0, 2}) job.hear(place, WorkerAddress{"a", std::vector<std::int64_t>{}}, 20 * ms);
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
  CHECK(job.settled_ == 1);
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
  CHECK(to_text(state, 50 * ms).find("gone: 1\n") != std::string::npos);
  CHECK(state.places[1].rank == -1);
  CHECK(state.places[2].rank == 1);
  CHECK(to_text(state, 50 * ms).find("step 2 of 20, generation 3, runs, as fewer\n") == 0);
  // The next loss is of rank 1, which place 2 runs.
  job.down(2, 40 * ms);
  job.leave({0});
  CHECK(job.shapes.back() == std::vector<PlaceId>{PlaceId{0}});
  job.left = {{PlaceId{0}, {2}}, {PlaceId{2}, {2}}};
  job.hear(0, WorkerAddress{"a", std::vector<std::int64_t>{}});
  CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "of 2"});
  CHECK(job.last<Connect>().home.own == std::vector<Rank>{0});
  job.hear(0, Ready{});
  CHECK(job.settled_ == 2);
  job.hear(0, Progress{1, false, {}, 0});
  CHECK(job.incidents[1].culprit == 2);
}

TEST_CASE("a place that is lost while another plan is entered: the state still lies where it was before") {
  ThreePlaces job(nullptr, 1, true);
  job.enter();
  for (std::int64_t step = 0; step < 3; ++step) job.commit(step);
  job.left = {{PlaceId{0}, {3}}, {PlaceId{1}, {3}}, {PlaceId{2}, {3}}};
  job.down(0);
  job.leave({1, 2});
  bool suspect = false;
  SUBCASE("by SIGKILL") {}
  SUBCASE("by SIGSEGV, with a part of the moments that it alone had") { suspect = true; }
  job.down(2, 0, suspect);
  CHECK(job.who<Abort>(4) == RankList{1});
  job.leave({1});
  CHECK(job.shapes == std::vector<std::vector<PlaceId>>{{PlaceId{1}, PlaceId{2}}, {PlaceId{1}}});
  job.hear(1, WorkerAddress{"a", std::vector<std::int64_t>{}});
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

TEST_CASE("a worn process is replaced, though its job replaces no lost place") {
  ThreePlaces job(nullptr, 0, true);
  job.enter();
  job.commit(0);
  job.fail(0);  // all leave
  job.coordinator.down(PlaceId{1}, Status(Code::unavailable, "it has ended"), ProcessEnd::worn, 0);
  job.coordinator.turn(0);
  CHECK(job.restarted == std::vector<std::pair<Rank, bool>>{{1, false}});
  CHECK(job.coordinator.generation().number == 3);  // that is no loss
  job.leave({0, 2});
  CHECK(job.shapes.empty());
  job.go_on({1});
  job.hear(0, Progress{1, false, {}, 0});
  CHECK(job.incidents[0].lost.empty());
  CHECK(job.last<Connect>().adopt == 1);
}

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
  job.leave({0, 1, 2});
  job.go_on({2, 3});
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
