// Jobs in which several programs train, in real processes.
#include <doctest/doctest.h>

#include "tests/apps/temp_dir.h"
#include "tests/process/apps.h"
#include "tests/runtime/two_nets.h"

using namespace mlp;
using troupe::test::TempDir;

namespace {

Plan plan_of_both(const std::vector<std::int64_t>& dp, std::int32_t snapshots = 0) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.snapshots = snapshots;
  o.keeps_version = true;
  o.seed = 7;
  auto p = compile(nets({large, small}, test_app().ops()), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

/// By step: losses and norms of both programs, and whether the step is void for the small one.
using ToldOfBoth = std::vector<std::tuple<std::int64_t, double, double, double, double, bool>>;

ToldOfBoth tell_of_both(const Plan& p, JobOptions job, std::int64_t steps, JobResult* out = nullptr) {
  ToldOfBoth told;
  const SessionOptions given = std::move(job.session);
  job.session = session_of(steps, {});
  job.session.first_step = given.first_step;
  job.session.sums = given.sums;
  job.session.on_step = [&](const StepResult& r) {
    REQUIRE(r.others.size() == 1);
    const ProgramResult& other = r.others[0];
    told.emplace_back(r.step, r.loss, r.grad_norm, other.loss, other.grad_norm, other.void_step);
  };
  const JobResult result = test_app().run(p, job);
  CHECK_MESSAGE(result.status.ok(), result.status.message());
  if (out) *out = result;
  return told;
}

}  // namespace

TEST_CASE("two programs that are saved on dp=2 go on from there on other meshes, each with its own count of updates") {
  const TempDir folder;
  JobOptions job;
  // Exponents with which the first steps of the small program overflow, and are void: fewer updates than the other has.
  job.session.sums.emplace();
  for (const char* layer : {"first", "second"})
    for (const char* part : {".up", ".down"}) job.session.sums->scales["small." + std::string(layer) + part] = {60, 0};
  const ToldOfBoth straight = tell_of_both(plan_of_both({1}), job, 6);
  REQUIRE(straight.size() == 6);
  CHECK(std::get<5>(straight[0]));
  CHECK_FALSE(std::get<5>(straight[3]));
  job.checkpoint = {.dir = folder / "ckpt", .every = 3};
  const ToldOfBoth saved = tell_of_both(plan_of_both({2}, 2), job, 3);
  CHECK(saved == ToldOfBoth(straight.begin(), straight.begin() + 3));
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {3}, {1, 1}, {2, 1}}) {
    JobOptions on;
    on.session.first_step = 3;
    on.checkpoint.restore = folder / "ckpt/step-00000003.g1";
    CHECK(tell_of_both(plan_of_both(dp), on, 6) == ToldOfBoth(straight.begin() + 3, straight.end()));
  }
}

TEST_CASE(
    "a worker of a job with two programs that train is killed: both go on, bit for bit, as in one simulated place") {
  ToldOfBoth simulated;
  SessionOptions session = session_of(12, {});
  session.on_step = [&](const StepResult& r) {
    const ProgramResult& other = r.others.at(0);
    simulated.emplace_back(r.step, r.loss, r.grad_norm, other.loss, other.grad_norm, other.void_step);
  };
  REQUIRE(simulate_job(plan_of_both({1}), test_app().ops(), actor_set(), session, {}).job.status.ok());
  for (const std::int64_t nth : {5, 6, 7, 8}) {  // of the updates of a step that one process makes
    JobOptions job;
    job.recovers = true;
    job.inject = {{.act = "update", .nth = nth, .rank = 1}};
    JobResult result;
    CHECK(tell_of_both(plan_of_both({2}), job, 12, &result) == simulated);
    REQUIRE(result.incidents.size() == 1);
    CHECK(result.incidents[0].from == "memory");
  }
}
