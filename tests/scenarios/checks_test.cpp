// The checks of scenarios fire: what a good start of a job has told is spoilt, one field at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "tests/scenarios/checks.h"

using namespace troupe;
using namespace troupe::scenarios;
using runtime::Incident;

namespace {

CompiledScenario& scenario() {
  static const auto compiled = [] {
    auto parsed = parse_scenario("dp = [2]\nsteps = 6\n[faults]\nkill = 1\n", "two.toml");
    REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
    auto c = CompiledScenario::create(*std::move(parsed));
    REQUIRE_MESSAGE(c.ok(), c.status().message());
    return *std::move(c);
  }();
  return *compiled;
}

/// The job loses place 1 halfway, and goes on.
Start run_start(Fault fault) {
  Start s;
  fault.at_event = scenario().events() / 2;
  s.faults = {fault};
  runtime::SimClusterOptions cluster;
  cluster.seed = 1;
  cluster.recovers = true;
  cluster.faults = simulated(s.faults);
  s.generation = cluster.generation.number;
  s.out = runtime::simulate_job(scenario().plan(), CompiledScenario::ops(), CompiledScenario::user_actors(),
                                session_of(scenario().scenario(), 0, s.told), cluster);
  for (const runtime::SimHit& h : s.out.run.hits) s.hits.push_back({fault.kind, fault.place, fault.peer, h.at_ns});
  return s;
}

const Start& good() {
  static const Start start = run_start({.kind = FaultKind::kill, .place = 1});
  return start;
}

Violations violations_of(const Start& start) {
  Violations v;
  const Ending ending = check_ending(scenario(), start, v);
  check_told(scenario(), start, ending, v);
  check_incidents(scenario(), start, ending, v);
  check_losses(start, v);
  return v;
}

/// Spoils the good start, and expects a violation that has this part.
void expect(const char* part, const std::function<void(Start&)>& spoil) {
  Start start = good();
  spoil(start);
  const Violations v = violations_of(start);
  std::string all;
  for (const auto& one : v) all += one + "\n";
  CAPTURE(all);
  CHECK_MESSAGE(all.find(part) != std::string::npos, part);
}

Incident& incident(Start& s) { return s.out.job.incidents.at(0); }

void fail(Start& s, int code, const std::string& message) {
  s.out.job.exit_code = code;
  s.out.job.status = Status(Code::unavailable, message);
}

}  // namespace

TEST_CASE("a start that goes on after a loss violates nothing") {
  CHECK(violations_of(good()) == Violations());
  REQUIRE(good().out.job.incidents.size() == 1);
  CHECK(good().hits.size() == 1);
  CHECK(good().out.job.incidents[0].version > 0);
  CHECK(good().out.run.restarts == 1);
}

TEST_CASE("each end of a start that has no reason is a violation") {
  expect("with exit code 6", [](Start& s) { s.out.job.exit_code = 6; });
  expect("has committed", [](Start& s) { s.out.job.committed_steps -= 1; });
  expect("has ended well after", [](Start& s) { s.out.job.committed_steps -= 1, s.told.steps.pop_back(); });
  expect("params_hash is", [](Start& s) { s.out.run.params_hash[0] ^= 1; });
  expect("of virtual time, and may take", [](Start& s) { s.out.run.virtual_ns = 1'000'000'000'000; });
  // Each of these has a fault of the wrong kind for it.
  expect("ended with exit code 130", [](Start& s) { fail(s, runtime::exit_interrupted, "interrupted"); });
  expect("ended with exit code 9", [](Start& s) { fail(s, runtime::exit_checkpoint, "disk full"); });
  expect("ended with exit code 7", [](Start& s) { fail(s, runtime::exit_stalled, "stalled"); });
  expect("ended with exit code 6", [](Start& s) { fail(s, runtime::exit_worker, "worker 1"); });
  expect("ended with exit code 6", [](Start& s) {  // it had begun
    s.hits.push_back({FaultKind::fails, 1, 0, 0});
    fail(s, runtime::exit_worker, "worker 1");
  });
  const std::string gave_up = "3 incidents without a new step between them, the last one: worker 1";
  expect("ended with exit code 10", [&](Start& s) { fail(s, runtime::exit_do_not_requeue, gave_up); });
  expect("ended with exit code 10", [&](Start& s) {  // there were three, and a new commit between the last two
    s.out.job.incidents.assign(3, incident(s));
    s.out.job.incidents[1].committed = s.out.job.incidents[0].version;
    fail(s, runtime::exit_do_not_requeue, gave_up);
    s.out.job.incidents[2].committed = s.out.job.incidents[0].committed + 1;
  });
  expect("asked to end once", [](Start& s) {
    s.hits.push_back({FaultKind::interrupt, 0, 0, s.out.run.virtual_ns});
    fail(s, runtime::exit_interrupted, "interrupted");
  });
  expect("the job says", [](Start& s) {
    s.hits.push_back({FaultKind::interrupt, 0, 0, s.out.run.virtual_ns});
    fail(s, runtime::exit_interrupted, "interrupted after step 5 of 6");
  });
}

TEST_CASE("a start may end early for the reasons that it has") {
  const auto ending = [](const std::function<void(Start&)>& change) {
    Start s = good();
    change(s);
    Violations v;
    return check_ending(scenario(), s, v);
  };
  CHECK(ending([](Start& s) {
          s.out.job.incidents.assign(3, incident(s));
          for (Incident& one : s.out.job.incidents) one.committed = one.version;
          fail(s, runtime::exit_do_not_requeue, "3 incidents without a new step between them, the last one: worker 1");
        }) == Ending::gave_up);
  CHECK(ending([](Start& s) {
          s.out.run.begun_ns = -1;
          s.hits.push_back({FaultKind::fails, 1, 0, 0});
          fail(s, runtime::exit_worker, "worker 1");
        }) == Ending::not_begun);
  CHECK(ending([](Start& s) { s.machine_stopped = true; }) == Ending::machine_stopped);
}

TEST_CASE("each difference of what is told is a violation") {
  expect("is told where step", [](Start& s) { s.told.steps[2].step = 3; });
  expect("has loss", [](Start& s) { s.told.steps[2].loss += 1e-12; });
  expect("has loss", [](Start& s) { s.told.steps[2].grad_norm += 1e-12; });
  expect("has loss", [](Start& s) { s.told.steps[2].lr += 1e-12; });
  expect("has loss", [](Start& s) { s.told.steps[2].void_step = true; });
  expect("of a job of 6 steps",
         [](Start& s) { s.told.steps.push_back(s.told.steps.back()), s.told.steps[6].step = 6; });
  expect("is told twice", [](Start& s) { s.told.evaluations.push_back(s.told.evaluations[0]); });
  expect("is not that of the undisturbed job", [](Start& s) { s.told.evaluations[0].second[0] += 1e-12; });
  expect("is not told", [](Start& s) { s.told.evaluations.pop_back(); });
  expect("has begun, and not closed", [](Start& s) { s.told.started.emplace_back("evaluate", 3); });
  expect("a program is told twice", [](Start& s) { s.told.started.push_back(s.told.started[0]); });
  expect("is told after one of generation",
         [](Start& s) { std::swap(s.told.happened.front(), s.told.happened.back()); });
  expect("the simulation told none", [](Start& s) { s.out.run.told_ns.pop_back(); });
}

TEST_CASE("each fault of an incident is a violation") {
  expect("has not gone on from any version", [](Start& s) { incident(s).version = -1; });
  expect("follows generation", [](Start& s) { incident(s).generation = s.generation; });
  expect("committed ones", [](Start& s) { incident(s).version = incident(s).committed + 1; });
  expect("in memory, and", [](Start& s) { incident(s).version = incident(s).committed - 2; });
  expect("and no memory was suspect", [](Start& s) { incident(s).from.clear(); });
  expect("were told (CO-3 held back)", [](Start& s) { incident(s).version = incident(s).committed - 2; });
  // `committed` of the job is not believed: an older one would hide that steps are repeated.
  expect("versions were committed, and", [](Start& s) { incident(s).version = incident(s).committed -= 2; });
  expect("versions were committed, and", [](Start& s) { incident(s).committed += 2; });
  expect("were told (CO-3 held back)", [](Start& s) { incident(s).version = incident(s).committed -= 2; });
  expect("a planned change goes on", [](Start& s) {
    incident(s).planned = true;
    incident(s).lost.clear();
    incident(s).version = incident(s).committed - 1;
  });
  expect("it has not closed", [](Start& s) { incident(s).act_ns = -1; });
  expect("its times are not in order", [](Start& s) { incident(s).left_ns = incident(s).down_ns - 1; });
}

TEST_CASE("a crash of one of two equal replicas goes on from memory") {
  const auto crash = [](Start& s) { s.hits[0].kind = FaultKind::crash; };
  Start start = good();
  crash(start);
  CHECK(violations_of(start) == Violations());
  expect("and no memory was suspect", [&](Start& s) { crash(s), incident(s).from.clear(); });
  expect("in memory, and", [&](Start& s) { crash(s), incident(s).version = incident(s).committed - 2; });
}

TEST_CASE("each loss without a fault is a violation") {
  expect("and no fault hit it", [](Start& s) { s.hits[0].place = 0; });
  expect("and no fault hit it", [](Start& s) { s.hits[0].at_ns = incident(s).last_down_ns + 1; });
  expect("and no fault hit it", [](Start& s) { s.hits[0].kind = FaultKind::blip; });
  expect("and no fault hit it", [](Start& s) { s.hits[0].kind = FaultKind::pause; });
  expect("and no fault hit it", [](Start& s) { s.hits.clear(); });
  expect("no place was lost", [](Start& s) { incident(s).lost.clear(); });
  expect("no place was lost", [](Start& s) {  // no interrupt had hit
    incident(s).lost.clear();
    incident(s).cause = "steps that had begun were not done 20.0 s after the job was asked to end";
  });
  expect("incidents, of 1 faults", [](Start& s) { s.out.job.incidents.push_back(incident(s)); });
  expect("2 places were lost to 1 faults", [](Start& s) { incident(s).lost.push_back(1); });
  expect("processes were started again", [](Start& s) { ++s.out.run.restarts; });
  const auto cut = [](Start& s) { s.hits[0].kind = FaultKind::cut; };
  expect("which is not named", cut);
  expect("and no fault hit it", [&](Start& s) { cut(s), s.out.run.linked.clear(); });
  expect("and names no link", [&](Start& s) {
    cut(s);
    s.out.job.incidents.clear();
    s.out.run.virtual_ns = 5'000'000'000;
  });
  // A place that is slow to leave needs no fault.
  Start slow = good();
  slow.hits.clear();
  incident(slow).cause += "\nthen worker 1 has not left its generation";
  Violations v;
  check_losses(slow, v);
  CHECK(v == Violations());
}

TEST_CASE("a checkpoint that was told to be committed, and is not there, is a violation") {
  SimStorage disk;
  REQUIRE(disk.make_dir("checkpoints").ok());
  Violations v;
  CHECK_FALSE(check_disk(disk, "checkpoints", 0, v));
  CHECK(v == Violations());
  CHECK_FALSE(check_disk(disk, "checkpoints", 2, v));
  REQUIRE(v.size() == 1);
  CHECK(v[0].find("the checkpoint of step 2 was told to be committed") == 0);
}

TEST_CASE("a cut link is named, and a link or a place that is held up for a moment takes no place") {
  for (const FaultKind kind : {FaultKind::cut, FaultKind::cut_one_way}) {
    const Start start = run_start({.kind = kind, .place = 0, .peer = 1});
    CAPTURE(name_of(kind));
    CHECK(violations_of(start) == Violations());
    REQUIRE(start.out.job.incidents.size() == 1);
    CHECK(start.out.job.incidents[0].cause.find("do not reach each other") != std::string::npos);
  }
  for (const FaultKind kind : {FaultKind::blip, FaultKind::pause}) {
    const Start start = run_start({.kind = kind, .place = 0, .peer = 1});
    CAPTURE(name_of(kind));
    CHECK(violations_of(start) == Violations());
    CHECK(start.hits.size() == 1);
    CHECK(start.out.job.incidents.empty());
    CHECK(start.out.run.virtual_ns > 300'000'000);
  }
}
