// A job whose lost places are gone for good: it goes on in other shapes, bit for bit as if nothing had happened.
#include <doctest/doctest.h>

#include <algorithm>

#include "devices/base/philox.h"
#include "runtime/launch/sim_cluster.h"
#include "runtime/search/shapes.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/kept_cases.h"

using namespace mlp;

namespace {

constexpr int reshaped_steps = 6;

/// Plans of the MLP by shape, each compiled once.
class Shapes {
 public:
  explicit Shapes(KeptCase like) : like_(std::move(like)) {}
  Expected<ChosenPlan> choose(const Plan& before, std::int64_t places) {
    ++asked;
    const auto key = std::pair(&before, places);
    if (const auto it = chosen_.find(key); it != chosen_.end()) return it->second;
    TROUPE_ASSIGN(ChosenPlan chosen, choose_shape(before, places, [this](const StageWidths& dp) -> Expected<Plan> {
                    KeptCase c = like_;
                    c.dp = dp;
                    if (dp.size() == 1) c.pipeline = {};
                    return compile_kept(c);
                  }));
    chosen_[key] = chosen;
    return chosen;
  }
  int asked = 0;

 private:
  KeptCase like_;
  std::map<std::pair<const Plan*, std::int64_t>, ChosenPlan> chosen_;
};

struct Reshaped {
  std::vector<StepResult> steps;
  SimOutcome out;
};

Reshaped reshaped(const Plan& p, Shapes* shapes, std::uint64_t seed, std::vector<SimFault> faults) {
  Reshaped result;
  SessionOptions session;
  session.steps = reshaped_steps;
  session.clip = 0.5;
  session.loss_divisor = 8;
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.faults = std::move(faults);
  cluster.recovers = true;
  cluster.stall_s = 120;
  if (shapes)
    cluster.replan = [shapes](const Plan& before, std::int64_t places) { return shapes->choose(before, places); };
  result.out = simulate_job(p, ops(), actor_set(), session, cluster);
  result.steps = result.out.run.steps;
  return result;
}

void check_as_if_nothing_had_happened(const Reshaped& one, const Reshaped& whole) {
  REQUIRE_MESSAGE(one.out.job.status.ok(), one.out.job.status.message());
  CHECK(one.out.run.params_hash == whole.out.run.params_hash);
  REQUIRE(one.steps.size() == reshaped_steps);  // one line a step
  for (std::size_t s = 0; s < reshaped_steps; ++s) {
    CHECK(one.steps[s].step == static_cast<std::int64_t>(s));
    CHECK(one.steps[s].loss == whole.steps[s].loss);
    CHECK(one.steps[s].grad_norm == whole.steps[s].grad_norm);
  }
}

std::vector<SimFault> losses(std::uint64_t seed, const Plan& p, std::int64_t events, std::size_t most) {
  const auto below = [&](std::uint64_t what, std::int64_t n) {
    return static_cast<std::int64_t>(philox(seed, what, 12)[0]) % n;
  };
  std::vector<SimFault> faults;
  for (std::size_t i = 0; i < 1 + seed % most; ++i) {
    const std::int64_t before = 8 * p.workers() + 2;
    SimFault f;
    f.kind = below(9 + 5 * i, 5) == 0 ? SimFault::Kind::hang : SimFault::Kind::kill;
    f.at_event = before + below(10 + 5 * i, events - before);
    f.place = static_cast<Rank>(below(11 + 5 * i, p.workers()));
    if (std::none_of(faults.begin(), faults.end(), [&](const SimFault& g) { return g.place == f.place; }))
      faults.push_back(f);
  }
  return faults;
}

const std::vector<KeptCase>& reshaped_cases() {
  static const std::vector<KeptCase> cases = {
      {{2}},          {{4}},    {{3}, 1, 1}, {{3}, 1, 2},
      {{2}, 1, 3},    {{2, 2}}, {{1, 1, 1}}, {{1, 1}, 1, 0, {Pipeline::Kind::zero_bubble}},
      {{2, 1}, 1, 1}, {{2}, 2}};
  return cases;
}

}  // namespace

TEST_CASE(
    "places that are gone for good: the job goes on in another shape, from the memory of all, and each bit is as if "
    "nothing had happened") {
  int shapes_taken = 0, twice = 0, moved = 0;
  std::uint64_t next = 1;
  for (const KeptCase& c : reshaped_cases()) {
    const Plan p = kept_plan(c);
    Shapes shapes(c);
    CAPTURE(c.dp.size());
    CAPTURE(c.dp[0]);
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    const Reshaped whole = reshaped(p, nullptr, 0, {});
    const std::int64_t spare = p.workers() / c.tp - 1;  // that may be lost: with tp, two places are one replica
    for (const std::uint64_t end = next + 12; next < end; ++next) {
      if (!test::is_drawn(static_cast<unsigned>(next))) continue;
      CAPTURE(next);
      const std::int64_t events = reshaped(p, nullptr, next, {}).out.run.events;
      const auto faults = losses(next, p, events, static_cast<std::size_t>(std::min<std::int64_t>(spare, 2)));
      const Reshaped one = reshaped(p, &shapes, next, faults);
      check_as_if_nothing_had_happened(one, whole);
      CHECK(one.out.run.restarts == 0);
      for (const Incident& i : one.out.job.incidents) {
        CHECK(i.from == "memory");
        CHECK(i.version >= i.committed - 1);
        if (i.lost.empty()) continue;
        CHECK(!i.shape.empty());
        ++shapes_taken;
        moved += i.moved_bytes > 0;
      }
      twice += one.out.job.incidents.size() > 1;
      if (next % 4 == 0) CHECK(reshaped(p, &shapes, next, faults).out.run.digest == one.out.run.digest);
    }
  }
  CHECK(shapes_taken > test::of_drawn(80));
  CHECK(moved > test::of_drawn(30));
  CHECK(twice > test::of_drawn(16) / 2);
}

TEST_CASE("a job whose last place is gone ends, and says that no shape runs without any") {
  const Plan p = kept_plan({{1}});
  Shapes shapes({{1}});
  SimFault f;
  f.at_event = 60;
  const Reshaped one = reshaped(p, &shapes, 1, {f});
  CHECK(one.out.job.exit_code == exit_worker);
  CHECK(one.out.job.status.message().find("no shape of this job runs on 0 places") != std::string::npos);
}
