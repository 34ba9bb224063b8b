// A job whose lost places are gone for good: it goes on in other shapes, bit for bit as if nothing had happened.
#include <doctest/doctest.h>

#include <algorithm>

#include "devices/base/philox.h"
#include "runtime/launch/sim_cluster.h"
#include "runtime/search/shapes.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/lacking_bytes.h"
#include "tests/runtime/recovered_session.h"

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
  Evaluations evaluations;
  SimOutcome out;
};

/// `changes`: shapes with which the job may be asked to go on; `spares`: places beside those of the plan; `machines`:
/// of all places, or none.
Reshaped reshaped(const Plan& p, Shapes* shapes, std::uint64_t seed, std::vector<SimFault> faults,
                  std::vector<ChosenPlan> changes = {}, Rank spares = 0, std::vector<std::int32_t> machines = {}) {
  Reshaped result;
  const SessionOptions session = recovered_session(reshaped_steps, 1, result.evaluations);
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.faults = std::move(faults);
  cluster.recovers = true;
  cluster.stall_s = 120;
  cluster.changes = std::move(changes);
  cluster.spares = spares;
  cluster.machines = std::move(machines);
  if (shapes)
    cluster.replan = [shapes](const Plan& before, std::int64_t places) { return shapes->choose(before, places); };
  result.out = simulate_job(p, ops(), actor_set(), session, cluster);
  result.steps = result.out.run.steps;
  return result;
}

/// The ranks of the places that an incident has left, and of `spares`: -1.
std::vector<Rank> left_by(const Incident& i, const Plan& before, Rank spares = 0) {
  std::vector<Rank> left;
  for (Rank r = 0; r < before.workers(); ++r)
    if (std::find(i.lost.begin(), i.lost.end(), r) == i.lost.end()) left.push_back(r);
  left.resize(left.size() + static_cast<std::size_t>(spares), -1);
  return left;
}

void check_as_if_nothing_had_happened(const Reshaped& one, const Reshaped& whole) {
  REQUIRE_MESSAGE(one.out.job.status.ok(), one.out.job.status.message());
  CHECK(one.out.run.params_hash == whole.out.run.params_hash);
  CHECK(one.evaluations == whole.evaluations);
  check_steps(one.steps, whole.steps, reshaped_steps);
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

/// Calls f(plan, its shapes, what happens undisturbed, seed, losses) for twelve seeds of each case.
template <class F>
void each_loss(F&& f) {
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
      f(p, shapes, whole, next, losses(next, p, events, static_cast<std::size_t>(std::min<std::int64_t>(spare, 2))));
    }
  }
}

}  // namespace

TEST_CASE(
    "places that are gone for good: the job goes on in another shape, from the memory of all, and each bit is as if "
    "nothing had happened") {
  int shapes_taken = 0, twice = 0, moved = 0, counted = 0, all_held = 0;
  each_loss([&](const Plan& p, Shapes& shapes, const Reshaped& whole, std::uint64_t seed,
                const std::vector<SimFault>& faults) {
    const Reshaped one = reshaped(p, &shapes, seed, faults);
    check_as_if_nothing_had_happened(one, whole);
    // Of the first change: before it the rank of each place is its number.
    if (const auto& all = one.out.job.incidents; !all.empty() && all[0].from == "memory" && all[0].lost.size() == 1) {
      const std::vector<Rank> left = left_by(all[0], p);
      const Plan& next = *shapes.choose(p, std::ssize(left))->plan;
      const bool held = test::moves_what_is_lacking(all[0].moved_bytes, next, p, left, true);
      ++counted;
      all_held += held;
      CHECK((held || (all[0].version == all[0].committed &&
                      test::moves_what_is_lacking(all[0].moved_bytes, next, p, left, false))));
    }
    int slow = 0;  // to leave, which is no loss
    for (const Incident& i : one.out.job.incidents)
      for (auto at = i.cause.find("has not left"); at != std::string::npos; at = i.cause.find("has not left", at + 1))
        ++slow;
    CHECK(one.out.run.restarts <= slow);
    for (const Incident& i : one.out.job.incidents) {
      CHECK((i.from == "memory" || i.committed == 0));  // before the first step nothing is whole
      CHECK(i.version >= i.committed - 1);
      if (i.lost.empty()) continue;
      CHECK(!i.shape.empty());
      ++shapes_taken;
      moved += i.moved_bytes > 0;
    }
    twice += one.out.job.incidents.size() > 1;
    if (seed % 4 == 0) CHECK(reshaped(p, &shapes, seed, faults).out.run.digest == one.out.run.digest);
  });
  CHECK(shapes_taken > test::of_drawn(80));
  CHECK(counted > test::of_drawn(60));
  CHECK(4 * all_held > 3 * counted);
  CHECK(moved > test::of_drawn(30));
  CHECK(twice > test::of_drawn(16) / 2);
}

TEST_CASE(
    "a planned change, to more places or to fewer, at any event: no step is repeated, and each bit is as if nothing "
    "had "
    "happened; so it is when a place is lost meanwhile") {
  int changed = 0, dismissed = 0, lost = 0, restarts = 0, counted = 0;
  std::uint64_t next = 1;
  for (const KeptCase& c : reshaped_cases()) {
    const Plan p = kept_plan(c);
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    const Reshaped whole = reshaped(p, nullptr, 0, {});
    std::vector<ChosenPlan> changes;
    for (const StageWidths& dp : {StageWidths{1}, {2, 1}, {3}}) {
      KeptCase other = c;
      other.dp = dp;
      other.pipeline = {};
      changes.push_back({std::make_shared<const Plan>(kept_plan(other)), std::to_string(changes.size()), 0, {}});
    }
    Shapes shapes(c);
    for (const std::uint64_t end = next + 9; next < end; ++next) {
      if (!test::is_drawn(static_cast<unsigned>(next))) continue;
      CAPTURE(next);
      const std::int64_t events = reshaped(p, nullptr, next, {}).out.run.events;
      std::vector<SimFault> faults;
      for (const Rank change : {static_cast<Rank>(next % 3), static_cast<Rank>((next + 1) % 3)}) {
        SimFault f;
        f.kind = SimFault::Kind::change;
        f.at_event = static_cast<std::int64_t>(philox(next, static_cast<std::uint64_t>(change), 13)[0]) % (events + 1);
        f.place = change;
        faults.push_back(f);
      }
      const bool kills = next % 3 == 0;
      if (kills) {
        auto more = losses(next, p, events, 1);
        more[0].kind = SimFault::Kind::kill;
        faults.push_back(more[0]);
      }
      const auto spares = static_cast<Rank>(std::max<std::int64_t>(3 * c.tp - p.workers(), 0) + 1);
      Shapes* const given = next % 2 == 0 ? &shapes : nullptr;  // else lost places come back
      const Reshaped one = reshaped(p, given, next, faults, changes, spares);
      check_as_if_nothing_had_happened(one, whole);
      if (const auto& all = one.out.job.incidents; !all.empty() && all[0].planned && all[0].lost.empty()) {
        const Plan& changed_to = *changes[static_cast<std::size_t>(std::stoi(all[0].shape))].plan;
        const auto had = left_by(all[0], p, spares);
        CHECK(test::moves_what_is_lacking(all[0].moved_bytes, changed_to, p, had, true));
        ++counted;
      }
      for (const Incident& i : one.out.job.incidents) {
        if (i.lost.empty()) CHECK(i.planned);
        if (i.planned && i.lost.empty()) CHECK(i.version == i.committed);  // nothing is repeated
        changed += i.planned;
        lost += !i.lost.empty();
      }
      dismissed += one.out.run.dismissed;
      if (next % 4 == 0) CHECK(reshaped(p, given, next, faults, changes, spares).out.run.digest == one.out.run.digest);
      restarts += one.out.run.restarts;
    }
  }
  CHECK(restarts >= std::max(1, test::of_drawn(8)));
  CHECK(changed > test::of_drawn(40));
  CHECK(counted > test::of_drawn(40));
  CHECK(dismissed > test::of_drawn(40));
  CHECK(lost >= std::max(1, test::of_drawn(8)));
}

TEST_CASE("a spare takes the place of one that is gone for good: the shape stays, though another may be faster") {
  for (const auto& [c, spares, text] : {std::tuple(KeptCase{{2}, 1, 1}, 1, "dp=2"),
                                        {KeptCase{{2, 2}}, 1, "dp=2,pp=2"},
                                        {KeptCase{{2}}, 2, "dp=2"},
                                        {KeptCase{{1, 1, 1}}, 1, "pp=3"}}) {
    const Plan p = kept_plan(c);
    Shapes shapes(c);
    const Reshaped whole = reshaped(p, nullptr, 0, {});
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      std::vector<SimFault> faults(1);
      faults[0].at_event = reshaped(p, nullptr, seed, {}).out.run.events / 2;
      faults[0].place = static_cast<Rank>(seed) % p.workers();
      const Reshaped one = reshaped(p, &shapes, seed, faults, {}, spares);
      check_as_if_nothing_had_happened(one, whole);
      REQUIRE(one.out.job.incidents.size() == 1);
      CHECK(one.out.job.incidents[0].shape == text);
      CHECK(one.out.job.incidents[0].moved_bytes > 0);
    }
    CHECK(shapes.asked == 0);
  }
}

TEST_CASE("a place that no shape needed is seated again after the next loss") {
  const KeptCase c{{3}, 2};
  const Plan p = kept_plan(c);
  Shapes shapes(c);
  const Reshaped whole = reshaped(p, nullptr, 0, {});
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    const std::int64_t events = reshaped(p, nullptr, seed, {}).out.run.events;
    std::vector<SimFault> faults(2);
    for (std::size_t i = 0; i < 2; ++i) {
      faults[i].at_event = events / 3 + static_cast<std::int64_t>(i) * events / 3;
      faults[i].place = static_cast<Rank>((seed + i * 3) % 6);
    }
    const Reshaped one = reshaped(p, &shapes, seed, faults);
    check_as_if_nothing_had_happened(one, whole);
    REQUIRE(one.out.job.incidents.size() >= 1);
    CHECK(one.out.job.incidents[0].shape == "dp=2,tp=2");  // five places are left, and one has no rank
    for (std::size_t i = 1; i < one.out.job.incidents.size(); ++i) CHECK(one.out.job.incidents[i].shape == "dp=2,tp=2");
  }
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

TEST_CASE(
    "places on several machines that are gone, or crash: state comes from other machines, and each bit is as if "
    "nothing "
    "had happened") {
  int across = 0, memory = 0, other = 0;
  each_loss(
      [&](const Plan& p, Shapes& shapes, const Reshaped& whole, std::uint64_t seed, std::vector<SimFault> faults) {
        std::vector<std::int32_t> machines;
        for (Rank r = 0; r < p.workers(); ++r)
          machines.push_back(static_cast<std::int32_t>(philox(seed, static_cast<std::uint64_t>(r), 15)[0] % 2));
        const bool replaced = seed % 3 == 0;  // where it is, a place that crashes comes back with nothing
        for (SimFault& f : faults)
          if (replaced) f.kind = SimFault::Kind::crash;
        const Reshaped one = reshaped(p, replaced ? nullptr : &shapes, seed, faults, {}, 0, machines);
        check_as_if_nothing_had_happened(one, whole);
        for (const Incident& i : one.out.job.incidents) {
          (i.from == "memory" ? memory : other) += 1;
          across += i.from == "memory" && i.moved_bytes > 0;
        }
      });
  CHECK(across > test::of_drawn(40));
  CHECK(3 * memory > 2 * other);  // what one place alone had is lost as it crashes
}
