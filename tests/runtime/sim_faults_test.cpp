// Places that die, hang or lose each other at any event of a simulated job, and jobs that are asked to end.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>

#include "devices/base/philox.h"
#include "devices/sim/sim_storage.h"
#include "runtime/launch/sim_cluster.h"
#include "tests/runtime/commits_at_once.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

using Kind = SimFault::Kind;

constexpr int steps = 3;

/// A plan, and whether it takes checkpoints.
struct Job {
  Plan plan;
  bool saves = false;
};

/// The versions that a job saves: the first two steps', and the last.
struct Saves final : CommitsAtOnce {
  std::int64_t last = steps;
  std::set<std::int64_t> written_versions;
  bool wants(std::int64_t version) const override { return version == 1 || version == 2 || version == last; }
  void written(std::int64_t version, const std::vector<Report>&, const SumState&) override {
    written_versions.insert(version);
  }
  void end_with(std::int64_t version) override { last = version; }
};

struct Ran {
  SimOutcome out;
  std::set<std::int64_t> saved;
};

Ran ran(const Job& job, const kernels::OpSet& ops, std::uint64_t seed, std::vector<SimFault> faults,
        bool fenced = true) {
  SessionOptions session;
  session.steps = steps;
  session.loss_divisor = 8;
  session.readers = [](std::int64_t version) {
    return version % 2 == 0 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  SimStorage storage;
  Saves saves;
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.faults = std::move(faults);
  cluster.fenced = fenced;
  cluster.stall_s = 120;
  if (job.saves) {
    REQUIRE(storage.make_dir("checkpoints").ok());
    cluster.storage = &storage;
    cluster.save = {"checkpoints", 1};
    cluster.snapshots = &saves;
  }
  SimOutcome out = simulate_job(job.plan, ops, actor_set(), session, cluster);
  return {std::move(out), saves.written_versions};
}

/// Jobs of several shapes, each with what comes of it where nothing happens.
struct Jobs {
  kernels::OpSet ops = kernels::standard_ops();
  std::vector<Job> jobs;
  std::vector<SimRun> whole;

  Jobs() {
    struct Case {
      std::vector<std::int64_t> dp;
      std::int32_t zero, snapshots;
    };
    for (const Case& c : {Case{{2}, 0, 0}, {{1, 1}, 0, 2}, {{2, 2}, 0, 0}, {{2}, 2, 2}, {{2}, 3, 0}}) {
      CompileOptions o;
      o.stages = stage_meshes(c.dp);
      o.zero = c.zero;
      o.snapshots = c.snapshots;
      const auto p = compile(graph(ops, Shape_{}), o);
      REQUIRE_MESSAGE(p.ok(), p.status().message());
      jobs.push_back({*p, c.snapshots > 0});
      const Ran r = ran(jobs.back(), ops, 1, {});
      REQUIRE_MESSAGE(r.out.job.status.ok(), r.out.job.status.message());
      REQUIRE(r.out.run.steps.size() == steps);
      whole.push_back(r.out.run);
    }
  }
};

std::int64_t draw(std::uint64_t seed, std::uint64_t what, std::int64_t below) {
  return static_cast<std::int64_t>(philox(seed, what, 7)[0]) % below;
}

/// `events`: of the run that nothing happens to. `what`: a number of the fault among those of the seed.
SimFault draw_fault(std::uint64_t seed, std::uint64_t what, Kind kind, const Plan& p, std::int64_t events) {
  SimFault f;
  f.kind = kind;
  f.at_event = draw(seed, what + 2, events);
  f.place = static_cast<Rank>(draw(seed, what + 3, p.workers()));
  f.peer = static_cast<Rank>((f.place + 1 + draw(seed, what + 4, p.workers() - 1)) % p.workers());
  return f;
}

std::string name(Rank r) { return "worker " + std::to_string(r); }

bool wrong_loss(const SimRun& run, const SimRun& whole) {
  for (std::size_t i = 0; i < run.steps.size(); ++i)
    if (run.steps[i].loss != whole.steps[i].loss || run.steps[i].grad_norm != whole.steps[i].grad_norm) return true;
  return false;
}

}  // namespace

TEST_CASE(
    "300 seeds of faults at any event of a job: it ends in time, names the culprit, and has committed no wrong step") {
  constexpr std::int64_t second = 1'000'000'000;
  const Jobs all;
  std::array<int, 7> runs{}, unharmed{};  // of one fault, by its kind
  int suspected = 0, pairs = 0, before_ready = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    if (!test::is_drawn(static_cast<unsigned>(seed))) continue;
    CAPTURE(seed);
    const auto at = static_cast<std::size_t>(draw(seed, 0, std::ssize(all.jobs)));
    const Job& job = all.jobs[at];
    const SimRun& whole = all.whole[at];
    const Ran calm = ran(job, all.ops, seed, {});
    CHECK(calm.out.job.status.ok());
    CHECK(calm.out.job.late_messages == 0);
    CHECK(calm.out.run.late_orders == 0);
    CHECK(calm.out.run.params_hash == whole.params_hash);
    CHECK_FALSE(calm.out.run.suspected);
    // Every fifth fault is an early one: before the job has begun.
    const std::int64_t events = seed % 5 == 0 ? 8 * job.plan.workers() : calm.out.run.events;
    std::vector<SimFault> faults{draw_fault(seed, 10, static_cast<Kind>(draw(seed, 1, 7)), job.plan, events)};
    if (seed % 3 == 0) faults.push_back(draw_fault(seed, 20, static_cast<Kind>(draw(seed, 5, 4)), job.plan, events));
    CAPTURE(static_cast<int>(faults[0].kind));
    CAPTURE(faults[0].at_event);
    CAPTURE(faults[0].place);
    CAPTURE(faults[0].peer);
    const Ran one = ran(job, all.ops, seed, faults), again = ran(job, all.ops, seed, faults);
    CHECK(one.out.run.digest == again.out.run.digest);
    CHECK(one.out.run.events == again.out.run.events);
    CHECK(one.out.job.status.message() == again.out.job.status.message());
    const Status& s = one.out.job.status;
    const SimRun& run = one.out.run;
    const int code = one.out.job.exit_code;
    CAPTURE(s.message());
    REQUIRE(run.steps.size() <= steps);
    CHECK_FALSE(wrong_loss(run, whole));
    CHECK(one.out.job.committed_steps == std::ssize(run.steps));
    const auto of_kind = [&](Kind k) {
      return std::count_if(faults.begin(), faults.end(), [&](const SimFault& f) { return f.kind == k; });
    };
    const auto one_kind = static_cast<std::size_t>(faults[0].kind);
    if (faults.size() == 1) ++runs[one_kind];
    if (faults.size() == 1 && (s.ok() || code == exit_interrupted))
      CHECK(run.virtual_ns < calm.out.run.virtual_ns + second);
    if (s.ok()) {
      CHECK(code == exit_ok);
      CHECK(run.params_hash == whole.params_hash);
      CHECK(one.saved == (job.saves ? std::set<std::int64_t>{1, 2, 3} : std::set<std::int64_t>{}));
      if (faults.size() == 1) ++unharmed[one_kind];
      continue;
    }
    pairs += faults.size() == 2;
    before_ready += run.steps.empty() && run.messages < job.plan.workers() * 2;
    if (code == exit_interrupted) {
      CHECK(of_kind(Kind::interrupt) == 1);
      if (faults.size() == 1 && s.message() != "interrupted") {  // paused: after a step, which is saved
        CHECK(s.message() == "interrupted after step " + std::to_string(run.steps.size()) + " of 3");
        CHECK(job.saves);
        CHECK(one.saved.count(std::ssize(run.steps)) == 1);
      }
    } else if (code == exit_worker) {
      CHECK(std::any_of(faults.begin(), faults.end(), [&](const SimFault& f) {
        return f.kind == Kind::kill && s.message() == name(f.place) + " was killed";
      }));
      CHECK(run.virtual_ns < run.fault_ns + 2 * second);
    } else {
      REQUIRE(code == exit_stalled);
      CHECK(of_kind(Kind::hang) + of_kind(Kind::cut) + of_kind(Kind::cut_off) > 0);
      for (Rank r = 0; r < job.plan.workers(); ++r) {  // who does not answer, and no other
        const bool silent = std::any_of(faults.begin(), faults.end(), [&](const SimFault& f) {
          return f.place == r && (f.kind == Kind::hang || f.kind == Kind::cut_off);
        });
        const bool blamed = s.message().find(name(r) + " does not answer") != std::string::npos;
        if (faults.size() == 1) CHECK(blamed == silent);
        else CHECK((silent || !blamed));
      }
      if (faults.size() == 1 && faults[0].kind == Kind::cut) {  // an exchange of one of them waits for the other
        const std::string& text = s.message();
        const auto waits = [&](Rank r) {
          const auto at = text.find(name(r) + ":"), end = text.find("worker ", at + 1);
          return at != std::string::npos && text.substr(at, end - at).find(" runs") != std::string::npos;
        };
        CHECK((waits(faults[0].place) || waits(faults[0].peer)));
      }
      CHECK(run.virtual_ns < 125 * second);
      CHECK(run.virtual_ns > 120 * second);
    }
    if (faults.size() == 1 && faults[0].kind == Kind::kill) {
      CHECK(code == exit_worker);
      suspected += run.suspected;
    }
  }
  // Harmless are a fault after the place's last word, a cut between two that have nothing to say, and what the fence
  // drops.
  for (const Kind kind : {Kind::kill, Kind::hang, Kind::cut_off}) {
    const auto k = static_cast<std::size_t>(kind);
    CHECK(runs[k] > test::of_drawn(14));
    CHECK(unharmed[k] * 8 < runs[k] + (test::one_in() > 1 ? 8 : 0));
  }
  for (const Kind kind : {Kind::stale_vote, Kind::stale_order}) {
    const auto k = static_cast<std::size_t>(kind);
    CHECK(runs[k] > test::of_drawn(7));
    CHECK(unharmed[k] == runs[k]);
  }
  const auto harmed = [&](Kind k) { return runs[static_cast<std::size_t>(k)] - unharmed[static_cast<std::size_t>(k)]; };
  CHECK(harmed(Kind::cut) > test::of_drawn(7));
  CHECK(harmed(Kind::interrupt) > test::of_drawn(7));
  CHECK(pairs > test::of_drawn(40));
  CHECK(suspected >
        test::of_drawn(5));  // CR-1 (the culprit): peers said that a place is gone before the coordinator knew
  CHECK(before_ready > test::of_drawn(5));
}

TEST_CASE(
    "a late vote or order of the generation before is dropped; without the fence it spoils runs (CL-1 one "
    "generation)") {
  const Jobs all;
  for (const Kind kind : {Kind::stale_vote, Kind::stale_order}) {
    CAPTURE(static_cast<int>(kind));
    std::int64_t late = 0;
    int spoilt = 0, wrong = 0;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      CAPTURE(seed);
      const auto at = static_cast<std::size_t>(draw(seed, 0, std::ssize(all.jobs)));
      const SimFault f = draw_fault(seed, 10, kind, all.jobs[at].plan, all.whole[at].events);
      const SimOutcome fenced = ran(all.jobs[at], all.ops, seed, {f}).out;
      CHECK_MESSAGE(fenced.job.status.ok(), fenced.job.status.message());
      CHECK(fenced.run.params_hash == all.whole[at].params_hash);
      late += kind == Kind::stale_vote ? fenced.job.late_messages : fenced.run.late_orders;
      const SimOutcome open = ran(all.jobs[at], all.ops, seed, {f}, false).out;
      spoilt += !open.job.status.ok();
      wrong += wrong_loss(open.run, all.whole[at]);
    }
    CHECK(late > 20);
    CHECK(spoilt > 10);
    if (kind == Kind::stale_vote) CHECK(wrong > 5);  // the step took the vote of the generation before
  }
}
