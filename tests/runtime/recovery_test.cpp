// A job that recovers: places that die at any event of a simulated job, and what the job tells of it.
#include <doctest/doctest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "devices/base/philox.h"
#include "runtime/launch/sim_cluster.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/lacking_bytes.h"
#include "tests/runtime/recovered_session.h"

using namespace mlp;

namespace {

constexpr int recovered_steps = 5;

/// What an application hears of a job.
struct Heard {
  std::vector<StepResult> steps;
  Evaluations evaluations;
  SimOutcome out;
};

struct Planted_ {
  bool fenced = true, whole_early = false;
};

Heard recovered(const Plan& p, std::uint64_t seed, std::vector<SimFault> faults, bool recovers = true,
                const Planted_& planted = {}) {
  Heard heard;
  const SessionOptions session = recovered_session(recovered_steps, 0, heard.evaluations);
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.faults = std::move(faults);
  cluster.recovers = recovers;
  cluster.stall_s = 120;
  cluster.fenced = planted.fenced;
  cluster.whole_early = planted.whole_early;
  heard.out = simulate_job(p, ops(), actor_set(), session, cluster);
  heard.steps = heard.out.run.steps;
  return heard;
}

std::int64_t draw_below(std::uint64_t seed, std::uint64_t what, std::int64_t below) {
  return static_cast<std::int64_t>(philox(seed, what, 11)[0]) % below;
}

void check_same(const Heard& one, const Heard& whole) {
  CHECK_MESSAGE(one.out.job.status.ok(), one.out.job.status.message());
  CHECK(one.out.run.params_hash == whole.out.run.params_hash);
  CHECK(one.out.job.committed_steps == recovered_steps);
  CHECK(one.evaluations == whole.evaluations);
  check_steps(one.steps, whole.steps, recovered_steps);
}

/// One or two faults at any event of a job that has begun.
std::vector<SimFault> draw_faults(std::uint64_t seed, const Plan& p, std::int64_t events,
                                  std::vector<SimFault::Kind> kinds) {
  std::vector<SimFault> faults;
  for (std::uint64_t i = 0; i < 1 + seed % 2; ++i) {
    SimFault f;
    f.kind = kinds[static_cast<std::size_t>(draw_below(seed, 12 + 5 * i, std::ssize(kinds)))];
    // A place enters, and says its address, before the first step.
    const std::int64_t before = 8 * p.workers() + 2;
    f.at_event = before + draw_below(seed, 10 + 5 * i, events - before);
    f.place = static_cast<Rank>(draw_below(seed, 11 + 5 * i, p.workers()));
    faults.push_back(f);
  }
  return faults;
}

/// The same fault, between its place and one of that place's peers.
std::vector<SimFault> faults_between(std::uint64_t seed, const Plan& p, SimFault fault) {
  const auto local = local_plan(p, fault.place);
  REQUIRE(local.ok());
  const auto peers = peers_of(*local);
  fault.peer = peers[static_cast<std::size_t>(draw_below(seed, 17, std::ssize(peers)))];
  return {fault};
}

bool same(const Heard& one, const Heard& whole) {
  if (!one.out.job.status.ok() || one.out.run.params_hash != whole.out.run.params_hash) return false;
  if (one.evaluations != whole.evaluations || one.steps.size() != whole.steps.size()) return false;
  for (std::size_t s = 0; s < whole.steps.size(); ++s)
    if (one.steps[s].loss != whole.steps[s].loss || one.steps[s].grad_norm != whole.steps[s].grad_norm) return false;
  return true;
}

using Kind = SimFault::Kind;

}  // namespace

TEST_CASE(
    "a place that dies at any event of a job is started anew, and the job ends as if nothing had happened: one line a "
    "step, each bit the same (CO-3 held back, CO-6 readers)") {
  int restarts = 0, newest = 0, before = 0, twice = 0, both = 0, from_memory = 0, unmoved = 0;
  for (const KeptCase& c : kept_cases()) {
    const Plan p = kept_plan(c);
    CAPTURE(c.dp.size());
    CAPTURE(c.dp[0]);
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    const Heard whole = recovered(p, 0, {}, false);
    check_same(whole, whole);
    check_same(recovered(p, 0, {}), whole);
    for (std::uint64_t seed = 1; seed <= 15; ++seed) {
      if (!test::is_drawn(static_cast<unsigned>(seed))) continue;
      CAPTURE(seed);
      const Heard calm = recovered(p, seed, {});
      check_same(calm, whole);
      CHECK(calm.out.job.incidents.empty());
      const auto faults = draw_faults(seed, p, calm.out.run.events, {Kind::kill});
      const Heard one = recovered(p, seed, faults);
      check_same(one, whole);
      CHECK(one.out.job.incidents.size() <= faults.size());
      CHECK(one.out.run.restarts <= std::ssize(faults));
      for (const Incident& i : one.out.job.incidents) {
        for (const Rank lost : i.lost)
          CHECK(std::any_of(faults.begin(), faults.end(), [&](const SimFault& f) { return f.place == lost; }));
        both += i.lost.size() > 1;
      }
      if (seed % 5 == 0) CHECK(recovered(p, seed, faults).out.run.digest == one.out.run.digest);
      restarts += one.out.run.restarts;
      twice += one.out.run.restarts > 1;
      for (const Incident& i : one.out.job.incidents) {
        newest += i.version == i.committed;
        before += i.version == i.committed - 1;
        // A job that has not begun begins again with its initial values.
        CHECK((i.from == "memory" || (i.from.empty() && i.version == 0 && i.committed == 0)));
        from_memory += i.from == "memory";
        if (i.from == "memory" && i.lost.size() == 1) {
          // Nothing, unless it was lost behind the votes, and not all had done their updates.
          std::vector<Rank> ranks(static_cast<std::size_t>(p.workers()));
          std::iota(ranks.begin(), ranks.end(), 0);
          CHECK(test::moves_what_is_lacking(i.moved_bytes, p, p, ranks, i.version < i.committed));
          unmoved += i.moved_bytes == 0;
        }
        CHECK(i.act_ns >= i.ready_ns);  // both may be taken in one turn
        CHECK(i.ready_ns > i.agreed_ns);
        CHECK(i.agreed_ns > i.left_ns);
        CHECK(i.left_ns >= i.last_down_ns);
      }
    }
  }
  CHECK(restarts > test::of_drawn(140));
  CHECK(from_memory > test::of_drawn(100));
  CHECK(unmoved > test::of_drawn(80));
  CHECK(newest > test::of_drawn(40));
  CHECK(before > test::of_drawn(8) / 2);  // few where a batch has the loss behind the votes
  CHECK(twice > test::of_drawn(30));
  CHECK(both > test::of_drawn(4) / 2);  // the second fault has hit while the job recovered
}

TEST_CASE(
    "a place that hangs is found by its silence and killed; where memory is suspect the job begins again, and the "
    "steps that it repeats are compared, not told") {
  int hung = 0, again = 0;
  std::uint64_t next = 1;
  for (const KeptCase& c : kept_cases()) {
    const Plan p = kept_plan(c);
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    const Heard whole = recovered(p, 0, {}, false);
    for (const std::uint64_t end = next + 8; next < end; ++next) {  // other seeds for each case
      const std::uint64_t seed = next;
      if (!test::is_drawn(static_cast<unsigned>(seed))) continue;
      CAPTURE(seed);
      const std::int64_t events = recovered(p, seed, {}).out.run.events;
      const Heard one = recovered(p, seed, draw_faults(seed, p, events, {Kind::hang, Kind::crash}));
      check_same(one, whole);
      for (const Incident& i : one.out.job.incidents) {
        hung += i.cause.find("has said nothing for") != std::string::npos;
        again += i.from.empty();
        CHECK((i.from.empty() ? i.version == 0 : i.version >= i.committed - 1));
      }
    }
  }
  CHECK(hung > test::of_drawn(16));
  CHECK(again > test::of_drawn(16));
}

TEST_CASE("of two places either both exchange messages, or neither does") {
  for (const KeptCase& c : kept_cases()) {
    const Plan p = kept_plan(c);
    std::vector<std::vector<Rank>> peers;
    for (Rank r = 0; r < p.workers(); ++r) {
      const auto local = local_plan(p, r);
      REQUIRE(local.ok());
      peers.push_back(peers_of(*local));
      CHECK(std::is_sorted(peers.back().begin(), peers.back().end()));
      CHECK(std::count(peers.back().begin(), peers.back().end(), r) == 0);
    }
    for (Rank a = 0; a < p.workers(); ++a)
      for (const Rank b : peers[static_cast<std::size_t>(a)]) {
        const auto& back = peers[static_cast<std::size_t>(b)];
        CHECK(std::count(back.begin(), back.end(), a) == 1);
      }
    if (c.dp == StageWidths{1, 1, 1} && c.tp == 1) CHECK(peers == std::vector<std::vector<Rank>>{{1}, {0, 2}, {1}});
    if (c.dp == StageWidths{2} && c.tp == 1) CHECK(peers == std::vector<std::vector<Rank>>{{1}, {0}});
  }
}

TEST_CASE(
    "a link that is cut between two places at any event: one of them is killed, and the job ends as if nothing had "
    "happened (CR-7 cut links)") {
  int cut_off = 0;
  std::uint64_t next = 1;
  for (const KeptCase& c : kept_cases()) {
    const Plan p = kept_plan(c);
    if (p.workers() < 2) continue;
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    const Heard whole = recovered(p, 0, {}, false);
    for (const std::uint64_t end = next + 6; next < end; ++next) {
      if (!test::is_drawn(static_cast<unsigned>(next))) continue;
      CAPTURE(next);
      const std::int64_t events = recovered(p, next, {}).out.run.events;
      auto faults = draw_faults(next, p, events, {Kind::cut});
      faults.resize(1);
      faults = faults_between(next, p, faults[0]);
      const Heard one = recovered(p, next, faults);
      check_same(one, whole);
      CHECK(one.out.job.incidents.size() <= 1);
      CHECK(one.out.run.restarts <= 1);
      for (const Incident& i : one.out.job.incidents) {
        CAPTURE(i.cause);
        CHECK(i.from == "memory");
        CHECK(i.cause.find("do not reach each other") != std::string::npos);
        REQUIRE(i.lost.size() == 1);
        CHECK((i.lost[0] == faults[0].place || i.lost[0] == faults[0].peer));
        ++cut_off;
      }
    }
  }
  CHECK(cut_off > test::of_drawn(20));
}

TEST_CASE(
    "planted errors are found: a link that does not fence, and a memory that passes for whole while it is written") {
  enum Error { none, unfenced, whole_early };
  for (const Error error : {none, unfenced, whole_early}) {
    CAPTURE(error);
    const Planted_ planted{error != unfenced, error == whole_early};
    int wrong = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      if (error == none && !test::is_drawn(static_cast<unsigned>(seed))) continue;
      const Plan p = kept_plan(kept_cases()[seed % kept_cases().size()]);
      const Heard whole = recovered(p, 0, {}, false);
      const std::int64_t events = recovered(p, seed, {}).out.run.events;
      const pid_t child = ::fork();  // an assertion may find it
      if (child == 0) {
        ::close(STDOUT_FILENO);
        ::close(STDERR_FILENO);
        ::signal(SIGABRT, SIG_DFL);
        ::_exit(same(recovered(p, seed, draw_faults(seed, p, events, {Kind::kill}), true, planted), whole) ? 0 : 1);
      }
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      wrong += status != 0;
    }
    CHECK((wrong > 0) == (error != none));
  }
}
