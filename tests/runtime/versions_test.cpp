// CompileOptions::keeps_version: an update reads one slot of parameters and moments and writes the other.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "runtime/place/local_plan.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/kept_cases.h"

using namespace mlp;

namespace {

PlanChannel& first_parameters(Plan& p) {
  auto& channels = p.roles[0].channels;
  const auto it = std::find_if(channels.begin(), channels.end(),
                               [](const PlanChannel& c) { return c.kind == PlanChannel::Kind::parameter; });
  REQUIRE(it != channels.end());
  return *it;
}

/// What places hold when a job ends: rank, channel, version -> bytes.
using KeptState = std::map<std::tuple<Rank, std::string, std::int64_t>, std::vector<std::byte>>;

struct KeptEnd {
  KeptState held;
  std::int64_t committed = 0, messages = 0;
  bool ok = false;
};

/// Runs `steps` steps, or until the coordinator has `stop_after` messages. Version 2 is evaluated for long.
KeptEnd kept_end(const Plan& p, std::int64_t steps, std::uint64_t seed, std::int64_t stop_after = -1) {
  SessionOptions session;
  session.steps = steps;
  session.clip = 0.5;
  session.loss_divisor = 8;
  session.readers = [](std::int64_t version) {
    return version == 2 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  KeptEnd out;
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.stop_after = stop_after;
  cluster.at_end = [&](Rank r, const Worker& w) {
    for (const HeldVersion& h : w.held())
      out.held[{r, h.group, h.version}] = std::vector<std::byte>(h.state.begin(), h.state.end());
  };
  const SimOutcome run = simulate_job(p, ops(), actor_set(), session, cluster);
  out.committed = run.job.committed_steps;
  out.messages = run.run.messages;
  out.ok = run.job.status.ok();
  return out;
}

}  // namespace

TEST_CASE(
    "whenever a job stops, all places hold one version whole: the newest that is committed, or the one before, each "
    "byte "
    "of parameters, exponents and moments as a job has it that ends there (CO-1 whole version, CO-2 votes)") {
  constexpr std::int64_t steps = 4;
  int newest = 0, before = 0, both = 0;
  for (const KeptCase& c : kept_cases()) {
    const Plan p = kept_plan(c);
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    KeptState expected;  // of jobs that end with each version
    for (std::int64_t v = 1; v <= steps; ++v) {
      const KeptEnd whole = kept_end(p, v, 0);
      REQUIRE(whole.ok);
      for (const auto& [key, bytes] : whole.held)
        if (std::get<2>(key) == v) expected[key] = bytes;
    }
    std::set<std::pair<Rank, std::string>> groups;
    for (const auto& [key, bytes] : expected) groups.insert({std::get<0>(key), std::get<1>(key)});
    REQUIRE(static_cast<std::int64_t>(expected.size()) == steps * std::ssize(groups));
    const std::int64_t all = kept_end(p, steps, 1).messages;
    for (std::int64_t n = 3 * p.workers() + 1; n < all; ++n) {
      CAPTURE(n);
      const KeptEnd stopped = kept_end(p, steps, static_cast<std::uint64_t>(n), n);
      const auto all_hold = [&](std::int64_t version) {
        return std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
          return stopped.held.count({group.first, group.second, version}) == 1;
        });
      };
      for (const auto& [key, bytes] : stopped.held)
        if (std::get<2>(key) > 0) CHECK((expected.count(key) == 1 && expected.at(key) == bytes));
      const bool has_newest = all_hold(stopped.committed), has_before = all_hold(stopped.committed - 1);
      CHECK((has_newest || has_before));
      newest += has_newest;
      before += has_before;
      both += has_newest && has_before;
    }
  }
  CHECK(newest > 100);
  CHECK(before > 100);
  CHECK(both > 50);
}

TEST_CASE("a plan that keeps a version gives the bits of one that does not, and nothing else takes more memory") {
  for (const KeptCase& c : kept_cases()) {
    const Plan one = kept_plan(c, Keeps::nothing), two = kept_plan(c);
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    for (Rank r = 0; r < one.workers(); ++r) {
      const auto a = local_plan(one, r), b = local_plan(two, r);
      REQUIRE(a.ok());
      REQUIRE(b.ok());
      CHECK(b->memory.parameters == 2 * a->memory.parameters);
      CHECK(b->memory.optimizer == 2 * a->memory.optimizer);
      CHECK(a->memory.optimizer > 0);
      CHECK(b->memory.total() - b->memory.parameters - b->memory.optimizer ==
            a->memory.total() - a->memory.parameters - a->memory.optimizer);
    }
    const auto expected = train(one, ops(), 5, 0, 8);
    REQUIRE_MESSAGE(expected.ok(), expected.status().message());
    for (const std::uint64_t seed : {0, 1, 2, 3, 4}) {
      const auto run = train(two, ops(), 5, seed, 8);
      REQUIRE_MESSAGE(run.ok(), run.status().message());
      CHECK(run->run.params_hash == expected->run.params_hash);
      CHECK(run->eval == expected->eval);
      REQUIRE(run->run.steps.size() == 5);
      for (std::size_t s = 0; s < 5; ++s) {
        CHECK(run->run.steps[s].loss == expected->run.steps[s].loss);
        CHECK(run->run.steps[s].grad_norm == expected->run.steps[s].grad_norm);
      }
    }
  }
}

TEST_CASE("an update reads the version that it leaves whole, and waits for the commit, so for the votes of its step") {
  const Plan p = kept_plan({{2}});
  int updates = 0;
  for (const PlanActor& a : p.roles[0].actors) {
    if (a.kind != PlanActor::Kind::update) continue;
    ++updates;
    CHECK(p.roles[0].channels[a.out[0]].slots == 2);
    CHECK(std::count(a.in.begin(), a.in.end(), a.out[0]) == 1);
    CHECK(std::any_of(a.in.begin(), a.in.end(),
                      [&](auto c) { return p.roles[0].channels[c].kind == PlanChannel::Kind::commit; }));
  }
  CHECK(updates > 1);
}

TEST_CASE("parameters with another number of slots than their update can keep are refused by their name") {
  const auto refused = [](Plan p, const char* why) {
    const std::string name = first_parameters(p).name;
    const Status s = verify(p);
    CHECK_FALSE(s.ok());
    CHECK_MESSAGE((s.message().find(name) != std::string::npos && s.message().find(why) != std::string::npos),
                  s.message());
  };
  Plan p = kept_plan({{2}});
  first_parameters(p).slots = 1;
  refused(p, "has 1 slots, and its update reads it 1 times; expected 0");
  first_parameters(p).slots = 3;
  refused(p, "has 3 slots");
  Plan torn = kept_plan({{2}});
  for (PlanActor& a : torn.roles[0].actors)
    if (a.kind == PlanActor::Kind::update && torn.roles[0].channels[a.out[0]].name == first_parameters(torn).name)
      a.params.clear();
  refused(torn, "its update writes 0");
  Plan one = kept_plan({{2}}, Keeps::nothing);
  first_parameters(one).slots = 2;
  refused(one, "has 2 slots, and its update reads it 0 times; expected 1");
}
