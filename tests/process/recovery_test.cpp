// A job of real processes that goes on when one of them is lost.
#include <doctest/doctest.h>
#include <signal.h>

#include <filesystem>

#include "tests/apps/temp_dir.h"
#include "tests/process/apps.h"

using namespace mlp;
using troupe::test::TempDir;

namespace {

constexpr std::int64_t recovered_job_steps = 12;

Plan plan_that_keeps(const std::vector<std::int64_t>& dp, std::int32_t snapshots = 0, std::int32_t zero = 0) {
  CompileOptions o;
  o.zero = zero;
  o.stages = stage_meshes(dp);
  o.keeps_version = true;
  o.snapshots = snapshots;
  o.seed = 7;
  auto p = compile(graph(test_app().ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

Plan plan_that_copies(const std::vector<std::int64_t>& dp, std::int32_t zero = 0) {
  CompileOptions o;
  o.zero = zero;
  o.stages = stage_meshes(dp);
  o.keeps_copies = true;
  o.seed = 7;
  auto p = compile(graph(test_app().ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

/// What a job tells, and what has come of it.
struct Told {
  std::vector<std::pair<std::int64_t, std::pair<double, double>>> steps;  // loss and norm
  std::vector<std::pair<std::int64_t, double>> evaluations;
  JobResult result;
};

Told tell(const Plan& plan, JobOptions job, const std::vector<std::string>& drills = {}) {
  Told told;
  job.recovers = true;
  job.session.steps = recovered_job_steps;
  job.session.loss_divisor = 8;
  job.session.clip = 0.5;
  job.session.readers = [](std::int64_t version) {
    return version % 4 == 0 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  job.session.on_step = [&](const StepResult& r) { told.steps.push_back({r.step, {r.loss, r.grad_norm}}); };
  job.session.on_closed = [&](const std::string&, std::int64_t version, const std::vector<Report>& reports) {
    double sum = 0;
    for (const Report& r : reports) sum += r.values.at(0);
    told.evaluations.push_back({version, sum});
  };
  for (const std::string& drill : drills) {
    const auto injection = parse_injection(drill);
    REQUIRE_MESSAGE(injection.ok(), injection.status().message());
    job.inject.push_back(*injection);
  }
  told.result = test_app().run(plan, job);
  return told;
}

void check_undisturbed(const Told& one, const Told& whole) {
  CHECK_MESSAGE(one.result.status.ok(), one.result.status.message());
  CHECK(one.result.params_hash == whole.result.params_hash);
  CHECK(one.steps == whole.steps);
  CHECK(one.steps.size() == recovered_job_steps);
  CHECK(one.evaluations == whole.evaluations);
}

}  // namespace

TEST_CASE("a job goes on, bit for bit, when workers are killed, exit, or are stopped in the middle of what they do") {
  const Plan plan = plan_that_keeps({2, 1});
  const Told whole = tell(plan, {});
  check_undisturbed(whole, whole);
  CHECK(whole.result.incidents.empty());
  for (const std::vector<std::string>& drills :
       {std::vector<std::string>{"SIGKILL@update:mid#9/worker0"},
        {"EXIT@forward:before#7/worker2", "SIGKILL@exchange:mid#31/worker1"},
        {"SIGSTOP@norm:after#8/worker1"},
        {"SIGKILL@commit#5/worker0", "SIGKILL@commit#5/worker1", "SIGKILL@commit#5/worker2"}}) {
    CAPTURE(drills[0]);
    JobOptions job;
    job.detect_budget_ms = 1000;
    const Told one = tell(plan, job, drills);
    check_undisturbed(one, whole);
    CHECK(one.result.missed_drills.empty());
    REQUIRE_FALSE(one.result.incidents.empty());
    std::size_t lost = 0;
    for (const Incident& i : one.result.incidents) {
      lost += i.lost.size();
      CHECK(i.from == "memory");
      CHECK(i.version >= i.committed - 1);
      CHECK(i.act_ns > i.down_ns);
    }
    CHECK(lost == drills.size());
  }
}

TEST_CASE(
    "the memory of a worker that has crashed is not used: where no other has the same, the job goes on from its newest "
    "checkpoint, tells no step twice, and its checkpoints are those of one run") {
  TempDir dir;
  const Plan plan = plan_that_keeps({2}, 2, 1);
  const auto job = [&](const std::string& folder) {
    JobOptions o;
    o.checkpoint.dir = dir / folder;
    o.checkpoint.every = 3;
    o.checkpoint.retention.keep = 100;
    return o;
  };
  const Told whole = tell(plan, job("whole"));
  check_undisturbed(whole, whole);
  Told one;
  std::string folder;
  for (int tries = 0; tries < 5 && one.result.incidents.empty(); ++tries) {
    folder = "crashed" + std::to_string(tries);
    one = tell(plan, job(folder), {"SIGSEGV@update:mid#25/worker1"});
    check_undisturbed(one, whole);
    REQUIRE(one.result.incidents.size() == 1);
    // Checkpoints are written beside the steps: where the disk is busy the crash may come before the first one.
    if (one.result.incidents[0].from.empty() && tries < 4) one.result.incidents.clear();
  }
  const Incident& i = one.result.incidents[0];
  CHECK(i.from.find(folder + "/step-") != std::string::npos);
  CHECK(i.version % 3 == 0);
  CHECK(i.version > 0);
  std::size_t folders = 0;  // of steps 3, 6, 9 and 12, each once and whole
  for (const auto& entry : std::filesystem::directory_iterator(dir / folder))
    if (entry.is_directory()) {
      ++folders;
      CHECK_MESSAGE(std::filesystem::exists(entry.path() / "manifest"), entry.path().string());
    }
  CHECK(folders == 4);
}

TEST_CASE("a worker that has crashed takes its state from another one that has the same") {
  const Plan plan = plan_that_keeps({2});
  const Told whole = tell(plan, {});
  const Told one = tell(plan, {}, {"SIGSEGV@update:mid#25/worker1"});
  check_undisturbed(one, whole);
  REQUIRE(one.result.incidents.size() == 1);
  CHECK(one.result.incidents[0].from == "memory");
  CHECK(one.result.incidents[0].moved_bytes > 0);
}

TEST_CASE("a worker that dies again and again at the same step ends the job, with a code that says so") {
  Graph g(test_app().ops());
  g.program("train", {2, 2});
  g.unit("all");
  const Value x = g.actor("dying", "x", {}, {{"x", {DType::f32, {2, 8}}}}, {{"step", std::int64_t{3}}})[0];
  const Value y = g.op("linear", {x, g.param("w", {8, 8}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {y, x}, {{"scale", 0.25}})[0], {});
  for (const bool copies : {false, true}) {
    CompileOptions o;
    o.stages = stage_meshes({2});
    o.keeps_version = !copies;
    o.keeps_copies = copies;
    const auto plan = compile(g, o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    JobOptions job;
    job.recovers = true;
    job.session.steps = 10;
    job.session.copy_every = copies ? 100 : 0;
    std::vector<std::int64_t> told;
    job.session.on_step = [&](const StepResult& r) { told.push_back(r.step); };
    const JobResult r = test_app().run(*plan, job);
    CHECK(r.exit_code == exit_do_not_requeue);
    // It may die before it has told of an act: then all is one incident, of this place or of both.
    const auto says = [&](std::string_view what) { return r.status.message().find(what) != std::string::npos; };
    CHECK_MESSAGE((says("3 incidents without a new step between them") || says("without an act")), r.status.message());
    CHECK(says("was killed by signal 9"));
    for (std::size_t i = 0; i < told.size(); ++i) CHECK(told[i] == static_cast<std::int64_t>(i));
    CHECK(told.size() <= 3);
    CHECK_FALSE(r.incidents.empty());
  }
}

TEST_CASE("a job goes on from copies, bit for bit, when workers are killed, exit, or are stopped; from copies alone") {
  const Told whole = tell(plan_that_keeps({2, 1}), {});
  for (const auto& [plan, drills] :
       {std::pair(plan_that_copies({2, 1}), std::vector<std::string>{"SIGKILL@update:mid#13/worker0"}),
        {plan_that_copies({2, 1}), {"EXIT@forward:before#20/worker2", "SIGKILL@copy:mid#5/worker1"}},
        {plan_that_copies({3}, 2), {"SIGKILL@gather:mid#13/worker1"}},
        {plan_that_copies({2}, 3), {"SIGSTOP@norm:after#20/worker1"}}}) {
    CAPTURE(drills[0]);
    JobOptions job;
    job.detect_budget_ms = 1000;
    job.session.copy_every = 3;
    const Told one = tell(plan, job, drills);
    check_undisturbed(one, whole);
    CHECK(one.result.missed_drills.empty());
    REQUIRE_FALSE(one.result.incidents.empty());
    std::size_t lost = 0;
    for (const Incident& i : one.result.incidents) lost += i.lost.size();
    CHECK(lost == drills.size());
    for (const Incident& i : one.result.incidents) {
      CHECK(i.from == "memory");
      CHECK(i.version % 3 == 0);
      CHECK(i.committed - i.version <= 3);
    }
  }
}

TEST_CASE("a job that recovers is refused an actor whose acts follow from earlier ones, by its name") {
  App app = test_app();
  struct Counter final : troupe::actors::UserActor {
    Status act(troupe::actors::UserCall& call) override {
      std::fill_n(call.out[0].as<float>(), call.out[0].size(), static_cast<float>(++acts));
      return {};
    }
    int acts = 0;
  };
  for (const auto acts : {troupe::actors::ActsBy::history, troupe::actors::ActsBy::call}) {
    app.actor<Counter>("counter", acts);
    Graph g(app.ops());
    g.program("train", {2, 2});
    g.unit("all");
    const Value x = g.actor("counter", "mine", {}, {{"x", {DType::f32, {2, 8}}}})[0];
    const Value y = g.op("linear", {x, g.param("w", {8, 8}, Init::normal(0.3f))})[0];
    g.minimize(g.op("mse_loss", {y, x}, {{"scale", 0.25}})[0], {});
    const auto plan = compile(g, {.keeps_version = true});
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const Status s = app.check(*plan, {.recovers = true});
    CHECK(s.ok() == (acts == troupe::actors::ActsBy::call));
    if (!s.ok()) CHECK(s.message().find("actor 'mine' is of kind 'counter'") != std::string::npos);
    CHECK(app.check(*plan, {}).ok());
  }
}

TEST_CASE("a job that could not go on is refused: a plan that overwrites what it reads, or trains nothing") {
  JobOptions job;
  job.recovers = true;
  const auto overwrites = plan(test_app().ops(), {}, {1});
  REQUIRE(overwrites.ok());
  const JobResult r = test_app().run(*overwrites, job);
  CHECK(r.exit_code == exit_plan);
  CHECK(r.status.message().find("CompileOptions::keeps_version") != std::string::npos);
  const Plan keeps = plan_that_keeps({1});
  for (const auto& [within, window, says] : {std::tuple(1, 0, "JobOptions::guard_within is 1: expected 2 to "),
                                             std::tuple(-1, 0, "JobOptions::guard_within is -1"),
                                             std::tuple(2, -1, "JobOptions::guard_window_most is -1: expected 0")}) {
    JobOptions guarded = job;
    guarded.guard_within = within;
    guarded.guard_window_most = window;
    const Status s = test_app().check(keeps, guarded);
    CHECK_MESSAGE(s.message().find(says) != std::string::npos, s.message());
  }
  CHECK(test_app().check(keeps, job).ok());
  const JobResult never = test_app().run(plan_that_copies({2}), job);
  CHECK(never.exit_code == exit_plan);
  CHECK(never.status.message().find("SessionOptions::copy_every is 0") != std::string::npos);
  Graph g(test_app().ops());
  g.program("relay", {1, 1});
  g.unit("all");
  g.report("x", g.actor("data", "x", {}, {{"x", {DType::f32, {1, 4}}}}, {{"stream", std::string("x")}})[0]);
  const auto relays = compile_over(g, {1});
  REQUIRE_MESSAGE(relays.ok(), relays.status().message());
  CHECK(test_app().run(*relays, job).status.message().find("trains nothing") != std::string::npos);
}

namespace {

/// Two players make what a learner reads two steps later, and a state of their own goes on from step to step.
Plan player_and_learner() {
  Graph g(test_app().ops());
  g.program("train", {4, 2});
  const auto data = [&](const std::string& name) {
    return g.actor("data", name, {}, {{name, {DType::f32, {2, 6}}}}, {{"stream", name}})[0];
  };
  g.model("player");
  const Value state = g.step_delay("state", {DType::f32, {2, 6}});
  const Value next = g.op("weighted_sum", {data("x"), state}, {{"b", 0.5}})[0];
  g.feed_back(state, next);
  g.report("state", next);
  g.model("learner");
  const Value before = g.step_delay("played", next, 2);
  const Value y = g.op("linear", {before, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {y, data("t")}, {{"scale", 0.1}})[0], {});
  CompileOptions o;
  o.seed = 7;
  o.keeps_version = true;
  o.models = {{"player", stage_meshes({2})}, {"learner", stage_meshes({1})}};
  auto p = compile(g, o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

}  // namespace

TEST_CASE("20 workers of a player and a learner are killed: what is kept from step to step goes on, bit for bit") {
  const Plan plan = player_and_learner();
  const auto run = [&](const std::vector<std::string>& drills) {
    std::vector<std::vector<double>> heard;
    JobOptions job;
    job.recovers = true;
    job.detect_budget_ms = 1000;
    job.session.steps = recovered_job_steps;
    job.session.on_step = [&](const StepResult& step) {
      heard.push_back({step.loss, step.grad_norm});
      for (const Report& r : step.reports) heard.back().insert(heard.back().end(), r.values.begin(), r.values.end());
    };
    for (const std::string& drill : drills) job.inject.push_back(*parse_injection(drill));
    const JobResult result = test_app().run(plan, job);
    REQUIRE_MESSAGE(result.status.ok(), result.status.message());
    CHECK(result.missed_drills.empty());
    std::size_t lost = 0;
    for (const Incident& i : result.incidents) lost += i.lost.size();
    CHECK(lost == drills.size());
    return std::pair(result.params_hash, heard);
  };
  const auto whole = run({});
  CHECK(whole.second.size() == recovered_job_steps);
  for (const auto& drills : std::vector<std::vector<std::string>>{
           {"SIGKILL@played.kept.next:before#3/worker2", "SIGKILL@state.kept.next:mid#9/worker0"},
           {"SIGKILL@played.kept.next:after#40/worker2", "SIGKILL@state.kept.next:after#13/worker1"},
           {"SIGKILL@player.kept.update:before#2/worker0", "SIGKILL@player.kept.update:mid#5/worker1"},
           {"SIGKILL@learner.kept.update:mid#4/worker2", "SIGKILL@player.kept.update:after#7/worker0"},
           {"SIGKILL@learner.kept.update:after#6/worker2", "SIGKILL@exchange:mid#11/worker1"},
           {"SIGKILL@learner.kept.update:before#11/worker2", "SIGKILL@actor:mid#5/worker0"},
           {"SIGKILL@commit#3/worker0", "SIGKILL@commit#3/worker1"},
           {"SIGKILL@commit#9/worker2", "SIGKILL@forward:mid#17/worker0"},
           {"SIGKILL@commit#5/worker0", "SIGKILL@commit#5/worker2"},
           {"SIGKILL@backward:mid#9/worker2", "SIGKILL@forward:after#2/worker1"}}) {
    CAPTURE(drills[0]);
    const auto one = run(drills);
    CHECK(one.first == whole.first);
    CHECK(one.second == whole.second);
  }
}
