// Guards: a machine that is lost for good with a part of the state that no other has takes back no more steps than the
// rule says, and each bit is as if nothing had happened.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "devices/base/philox.h"
#include "runtime/elastic/guarded_versions.h"
#include "runtime/launch/sim_cluster.h"
#include "runtime/place/guard_layout.h"
#include "runtime/search/shapes.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/recovered_session.h"

using namespace mlp;

namespace {

constexpr int guarded_steps = 14;

struct GuardCase {
  KeptCase plan;
  std::vector<std::int32_t> machines;  // of the plan's places, then of spares
};

std::vector<GuardCase> guard_cases() {
  using Kind = Pipeline::Kind;
  return {{{{1, 1}}, {0, 1, 2, 3}},         {{{1, 1, 1}}, {0, 1, 2, 3, 4}},
          {{{2}, 1, 1}, {0, 1, 2, 3}},      {{{2}, 1, 2}, {0, 1, 2}},
          {{{2}, 1, 3}, {0, 1, 2}},         {{{2, 2}}, {0, 0, 1, 1, 2, 2}},
          {{{2, 1}}, {0, 0, 1, 2, 2}},      {{{1, 1}, 1, 0, {Kind::zero_bubble}}, {0, 1, 2}},
          {{{1, 1}, 2}, {0, 0, 1, 1, 2, 2}}};
}

struct Guarded {
  std::vector<StepResult> steps;
  Evaluations evaluations;
  SimOutcome out;
};

Guarded guarded(const Plan& p, const std::vector<std::int32_t>& machines, std::uint64_t seed, std::int64_t within,
                std::vector<SimFault> faults, bool replaces = false) {
  Guarded result;
  const SessionOptions session = recovered_session(guarded_steps, 1, result.evaluations);
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.faults = std::move(faults);
  cluster.recovers = true;
  cluster.stall_s = 120;
  cluster.machines = machines;
  cluster.spares = static_cast<Rank>(std::ssize(machines)) - p.workers();
  cluster.guard_within = within;
  if (!replaces)
    cluster.replan = [](const Plan&, std::int64_t) -> Expected<ChosenPlan> { return invalid("no spare is left"); };
  result.out = simulate_job(p, ops(), actor_set(), session, cluster);
  result.steps = result.out.run.steps;
  return result;
}

/// All places of a machine end, for good.
void lose_machine(std::vector<SimFault>& faults, const std::vector<std::int32_t>& machines, std::int32_t machine,
                  std::int64_t at_event) {
  for (std::size_t place = 0; place < machines.size(); ++place)
    if (machines[place] == machine) faults.push_back({at_event, SimFault::Kind::kill, static_cast<Rank>(place), 0});
}

void check_as_if_nothing_had_happened(const Guarded& one, const Guarded& whole) {
  REQUIRE_MESSAGE(one.out.job.status.ok(), one.out.job.status.message());
  CHECK(one.out.run.params_hash == whole.out.run.params_hash);
  CHECK(one.evaluations == whole.evaluations);
  check_steps(one.steps, whole.steps, guarded_steps);
}

}  // namespace

TEST_CASE(
    "the rule of guards keeps its promise of steps, and gives a guard as many of them as it can have, or may have") {
  const auto with_window = [](std::int64_t steps, std::optional<std::int64_t> most) {
    CAPTURE(steps);
    CAPTURE(most.value_or(-1));
    const GuardRule rule = most ? guard_within(steps, *most) : guard_within(steps);
    CHECK(rule.every > rule.window);               // a guard is whole before the next one begins
    CHECK(rule.every + rule.window + 1 == steps);  // no step is given away ...
    if (!most || *most > rule.window) CHECK(rule.every <= rule.window + 2);  // ... and a guard has what it can have
    if (most) CHECK(rule.window <= *most);
    for (const std::int64_t first : {0, 7}) {
      GuardedVersions guards;
      guards.begin(rule, first);
      guards.made(first, {first, {}});
      CHECK(!guards.newest(first));
      for (std::int64_t committed = first + 1; committed < first + 100; ++committed) {
        guards.made(committed, {committed, {}});
        const auto newest = guards.newest(committed);
        CHECK(newest.has_value() == (committed >= first + rule.window + 2));
        if (!newest) continue;
        CHECK(committed - newest->version <= steps);
        CHECK(newest->sums.updates == newest->version);
        // Until the commit that begins the one after next, whose slot it has.
        CHECK(newest->version + 2 * rule.every > committed - 1);
      }
    }
  };
  for (std::int64_t steps = guard_within_least; steps < 40; ++steps) {
    with_window(steps, {});
    for (const std::int64_t most : {0, 1, 3, 100}) with_window(steps, most);
  }
}

TEST_CASE("guards are needed where a machine alone has a part of the state, and lie on another machine each") {
  const auto needs = [](const KeptCase& c, const std::vector<std::int32_t>& machines) {
    const Plan p = kept_plan(c);
    return needs_guards(p, machines);
  };
  CHECK(!needs({{2}}, {0, 1}));
  CHECK(!needs({{1, 1}}, {0, 0}));
  CHECK(needs({{1, 1}}, {0, 1}));
  CHECK(needs({{2}, 1, 1}, {0, 1}));      // moments
  CHECK(needs({{2, 2}}, {0, 0, 1, 1}));   // a stage on each
  CHECK(!needs({{2, 2}}, {0, 1, 0, 1}));  // both stages on each
  for (const GuardCase& c : guard_cases()) {
    const Plan p = kept_plan(c.plan);
    const std::vector<std::int32_t> machines(c.machines.begin(), c.machines.begin() + p.workers());
    const GuardLayout layout(p, machines);
    for (Rank r = 0; r < p.workers(); ++r) {
      const Rank guard = layout.guard_of(r);
      REQUIRE(guard >= 0);
      CHECK(machines[static_cast<std::size_t>(guard)] != machines[static_cast<std::size_t>(r)]);
      CHECK(layout.offset(guard, r) + guard_slots * layout.part(r).slot_bytes <= layout.bytes(guard));
      CHECK(layout.kept_by(r).front() == r);
    }
  }
}

TEST_CASE(
    "a machine that is lost for good with the only copy of a part of the state: the job goes on from guards, repeats "
    "no "
    "more steps than it was told, and each bit is as if nothing had happened; so it is when the next one is lost") {
  int from_guards = 0, again = 0, repeated = 0;
  std::uint64_t next = 1;
  for (const GuardCase& c : guard_cases()) {
    const Plan p = kept_plan(c.plan);
    CAPTURE(c.plan.dp.size());
    CAPTURE(c.plan.dp[0]);
    CAPTURE(c.plan.zero);
    const Guarded whole = guarded(p, c.machines, 0, 0, {});
    for (const std::uint64_t end = next + 8; next < end; ++next) {
      if (!test::is_drawn(static_cast<unsigned>(next))) continue;
      CAPTURE(next);
      const std::int64_t within = guard_within_least + static_cast<std::int64_t>(next % 4);
      const Guarded calm = guarded(p, c.machines, next, within, {});
      check_as_if_nothing_had_happened(calm, whole);
      const auto below = [&](std::uint64_t what, std::int64_t n) {
        return static_cast<std::int64_t>(philox(next, what, 12)[0]) % n;
      };
      const std::int64_t events = calm.out.run.events;
      const std::int32_t running = c.machines[static_cast<std::size_t>(p.workers()) - 1] + 1;
      const std::int32_t spares = c.machines.back() + 1 - running;
      std::vector<SimFault> faults;
      const auto first = static_cast<std::int32_t>(below(1, running));
      lose_machine(faults, c.machines, first, events / 8 + below(2, events * 7 / 8));
      if (spares > 1 && next % 2 == 0) {  // another one, or the spare that took its place
        const auto second = static_cast<std::int32_t>((first + 1 + below(3, running)) % (running + 1));
        lose_machine(faults, c.machines, second, events / 4 + below(4, events));
      }
      const Guarded one = guarded(p, c.machines, next, within, faults);
      check_as_if_nothing_had_happened(one, whole);
      std::int64_t begun = 0;
      for (const Incident& i : one.out.job.incidents) {
        CAPTURE(i.cause);
        CHECK((i.from == "memory" || i.from == "guard" || i.from.empty()));
        if (i.from == "memory") CHECK(i.committed - i.version <= 1);
        if (i.from == "guard") CHECK(i.committed - i.version <= within);
        std::set<std::int32_t> lost;  // machines
        for (const std::int32_t place : i.lost) lost.insert(c.machines[static_cast<std::size_t>(place)]);
        // Only where no guard was whole yet, or one is lost with what it guards.
        if (i.from.empty() && lost.size() < 2) CHECK(i.committed - begun < guard_within(within).window + 2);
        from_guards += i.from == "guard";
        again += i.from == "guard" && begun > 0;
        repeated += i.from == "guard" && i.version < i.committed;
        begun = i.version;
      }
      if (next % 4 == 0) CHECK(guarded(p, c.machines, next, within, faults).out.run.digest == one.out.run.digest);
    }
  }
  CHECK(from_guards > test::of_drawn(40));
  CHECK(repeated > test::of_drawn(40));
  CHECK(again > test::of_drawn(2));
}

TEST_CASE("a worker that crashes with the only copy of a stage takes it from its guard, and the others theirs") {
  const Plan p = kept_plan({{1, 1}});
  const std::vector<std::int32_t> machines{0, 1};
  const Guarded whole = guarded(p, machines, 0, 0, {}, true);
  int from_guards = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    const std::int64_t events = guarded(p, machines, seed, 3, {}, true).out.run.events;
    const auto at = static_cast<std::int64_t>(philox(seed, 5, 12)[0]) % (events / 2) + events / 4;
    const Guarded one = guarded(p, machines, seed, 3, {{at, SimFault::Kind::crash, static_cast<Rank>(seed % 2), 0}},
                                true);
    check_as_if_nothing_had_happened(one, whole);
    for (const Incident& i : one.out.job.incidents) {
      CHECK((i.from == "guard" || i.from == "memory"));  // a place that has just stopped has lost nothing
      if (i.from == "guard") CHECK(i.committed - i.version <= 3);
      from_guards += i.from == "guard";
    }
  }
  CHECK(from_guards > 6);
}
