// CompileOptions::keeps_copies: each place copies its part of some versions to memory that outlives its process, and a
// job goes on from the newest that all have copied (CO-7 copies).
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "devices/base/philox.h"
#include "runtime/launch/sim_cluster.h"
#include "runtime/place/kept_extents.h"
#include "runtime/place/state_places.h"
#include "runtime/search/shapes.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/recovered_session.h"

using namespace mlp;

namespace {

constexpr std::int64_t copied_run_steps = 8;

struct CopiedRun {
  std::vector<StepResult> steps;
  Evaluations evaluations;
  SimOutcome out;
};

struct CopiedOptions {
  std::int64_t every = 3;
  bool recovers = true;
  std::function<Expected<ChosenPlan>(const Plan&, std::int64_t)> replan;
  std::vector<ChosenPlan> changes;
};

CopiedRun copied_run(const Plan& p, std::uint64_t seed, std::vector<SimFault> faults, const CopiedOptions& o = {}) {
  CopiedRun run;
  SessionOptions session = recovered_session(copied_run_steps, 0, run.evaluations);
  session.copy_every = o.every;
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.faults = std::move(faults);
  cluster.recovers = o.recovers;
  cluster.stall_s = 120;
  cluster.replan = o.replan;
  cluster.changes = o.changes;
  run.out = simulate_job(p, ops(), actor_set(), session, cluster);
  run.steps = run.out.run.steps;
  return run;
}

void check_undisturbed(const CopiedRun& one, const CopiedRun& whole) {
  REQUIRE_MESSAGE(one.out.job.status.ok(), one.out.job.status.message());
  CHECK(one.out.run.params_hash == whole.out.run.params_hash);
  CHECK(one.evaluations == whole.evaluations);
  check_steps(one.steps, whole.steps, copied_run_steps);
}

/// One or two faults at any event of a job that has begun.
std::vector<SimFault> drawn_faults(std::uint64_t seed, const Plan& p, std::int64_t events, std::size_t most,
                                   const std::vector<SimFault::Kind>& kinds) {
  const auto below = [&](std::uint64_t what, std::int64_t n) {
    return static_cast<std::int64_t>(philox(seed, what, 14)[0]) % n;
  };
  std::vector<SimFault> faults;
  for (std::uint64_t i = 0; i < 1 + seed % most; ++i) {
    const std::int64_t before = 8 * p.workers() + 2;
    SimFault f;
    f.kind = kinds[static_cast<std::size_t>(below(9 + 5 * i, std::ssize(kinds)))];
    f.at_event = before + below(10 + 5 * i, events - before);
    f.place = static_cast<Rank>(below(11 + 5 * i, p.workers()));
    if (std::none_of(faults.begin(), faults.end(), [&](const SimFault& g) { return g.place == f.place; }))
      faults.push_back(f);
  }
  return faults;
}

using Kind = SimFault::Kind;

}  // namespace

TEST_CASE("of every element of parameters and moments one place has a copy, and only one") {
  for (const KeptCase& c : kept_cases()) {
    const Plan p = kept_plan(c, Keeps::copies);
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    std::map<std::pair<std::int32_t, StatePart>, std::int64_t> elements;
    std::map<std::pair<std::int32_t, StatePart>, std::vector<Extent>> extents;
    for (Rank r = 0; r < p.workers(); ++r) {
      const auto local = local_plan(p, r);
      REQUIRE(local.ok());
      const KeptExtents kept(p);
      std::set<std::pair<std::int64_t, std::int64_t>> bytes;
      for (const LocalActor& a : local->actors)
        for (const CopiedPart& part : a.copied) {
          CHECK(kept.of(r, part.param, part.part) == part.extent);
          for (const Extent& other : extents[{part.param, part.part}]) CHECK(intersect(other, part.extent).empty());
          extents[{part.param, part.part}].push_back(part.extent);
          elements[{part.param, part.part}] += part.extent.elements();
          const std::int64_t begin = a.copies.offset + part.offset,
                             end = begin + part.extent.elements() * item_bytes(p, p.params[part.param], part.part);
          CHECK(end <= a.copies.offset + a.copies.version_offset);
          bytes.insert({begin, end});
        }
      std::int64_t at = 0;
      for (const auto& [begin, end] : bytes) {
        CHECK(begin >= at);
        at = end;
      }
      CHECK(local->copies_bytes % 4096 == 0);
      CHECK(at <= local->copies_bytes);
      CHECK(local->memory.copies == local->copies_bytes);
    }
    for (std::size_t i = 0; i < p.params.size(); ++i)
      for (const StatePart part : state_parts)
        CHECK(elements[{static_cast<std::int32_t>(i), part}] == troupe::elements(p.tensors[p.params[i].tensor].shape));
  }
}

TEST_CASE("a plan that keeps copies has slots as one that keeps nothing, gives its bits, and only copies take memory") {
  for (const KeptCase& c : kept_cases()) {
    const Plan one = kept_plan(c, Keeps::nothing), two = kept_plan(c, Keeps::copies);
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    std::int64_t copies = 0;
    for (Rank r = 0; r < one.workers(); ++r) {
      const auto a = local_plan(one, r), b = local_plan(two, r);
      REQUIRE(a.ok());
      REQUIRE(b.ok());
      CHECK(b->pool_bytes == a->pool_bytes);
      CHECK(a->copies_bytes == 0);
      CHECK(b->memory.total() - b->copies_bytes == a->memory.total());
      copies += b->copies_bytes;
    }
    const auto needs_one = needed_bytes(one), needs_two = needed_bytes(two);
    REQUIRE((needs_one.ok() && needs_two.ok()));
    CHECK(*needs_two == *needs_one + copies);
    const CopiedRun whole = copied_run(one, 0, {}, {0, false});
    for (const std::int64_t every : {1, 2, 5, 100})
      check_undisturbed(copied_run(two, static_cast<std::uint64_t>(every), {}, {every}), whole);
  }
}

TEST_CASE(
    "whenever a job stops, all places hold a version that was copied: the newest, or the one before it, each byte as "
    "every job copies it (CO-7 copies)") {
  constexpr std::int64_t steps = 5;
  using Held = std::map<std::tuple<Rank, std::string, std::int64_t>, std::vector<std::byte>>;
  struct End {
    Held held;
    std::int64_t committed = 0, messages = 0;
  };
  const auto end_of = [](const Plan& p, std::int64_t last, std::int64_t every, std::uint64_t seed,
                         std::int64_t stop_after) {
    SessionOptions session;
    session.steps = last;
    session.copy_every = every;
    session.clip = 0.5;
    session.loss_divisor = 8;
    End end;
    SimClusterOptions cluster;
    cluster.seed = seed;
    cluster.stop_after = stop_after;
    cluster.at_end = [&](Rank r, const Worker& w) {
      for (const HeldVersion& h : w.held())
        end.held[{r, h.group, h.version}] = std::vector<std::byte>(h.state.begin(), h.state.end());
    };
    const SimOutcome run = simulate_job(p, ops(), actor_set(), session, cluster);
    end.committed = run.job.committed_steps;
    end.messages = run.run.messages;
    return end;
  };
  int newest = 0, before = 0;
  for (const KeptCase& c : kept_cases()) {
    const Plan p = kept_plan(c, Keeps::copies);
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    Held expected;
    for (std::int64_t v = 1; v <= steps + 1; ++v) expected.merge(end_of(p, v, 1, 0, -1).held);
    std::set<std::pair<Rank, std::string>> groups;
    for (const auto& [key, bytes] : expected) groups.insert({std::get<0>(key), std::get<1>(key)});
    REQUIRE(std::ssize(expected) == (steps + 1) * std::ssize(groups));
    const std::int64_t every = 2, all = end_of(p, steps, every, 1, -1).messages;
    for (std::int64_t n = 3 * p.workers() + 1; n < all; ++n) {
      if (!test::is_drawn(static_cast<unsigned>(n))) continue;
      CAPTURE(n);
      const End stopped = end_of(p, steps, every, static_cast<std::uint64_t>(n), n);
      for (const auto& [key, bytes] : stopped.held) CHECK((expected.count(key) == 1 && expected.at(key) == bytes));
      const auto all_hold = [&](std::int64_t version) {
        return std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
          return stopped.held.count({group.first, group.second, version}) == 1;
        });
      };
      const std::int64_t last = stopped.committed / every * every;
      const bool has_last = all_hold(last), has_before = last > 0 && all_hold(last - every);
      if (stopped.committed == 0) continue;  // the first copy may be under way
      CHECK((has_last || has_before));
      if (stopped.committed > last) CHECK(has_last);  // its commit has waited for it
      newest += has_last;
      before += has_before && !has_last;
    }
  }
  CHECK(newest > test::of_drawn(200));
  CHECK((before > 2 || test::one_in() > 1));
}

TEST_CASE("a place that dies, hangs or crashes at any event: its job goes on from copies, as if nothing had happened") {
  int from_copies = 0, repeated = 0, none = 0, crashed = 0, most = 0;
  std::uint64_t next = 1;
  for (const KeptCase& c : kept_cases()) {
    const Plan p = kept_plan(c, Keeps::copies);
    CAPTURE(c.dp.size());
    CAPTURE(c.dp[0]);
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    const CopiedRun whole = copied_run(p, 0, {}, {0, false});
    for (const std::uint64_t end = next + 15; next < end; ++next) {
      if (!test::is_drawn(static_cast<unsigned>(next))) continue;
      CAPTURE(next);
      CopiedOptions o;
      o.every = 1 + static_cast<std::int64_t>(next % 4);
      const std::int64_t events = copied_run(p, next, {}, o).out.run.events;
      const auto faults = drawn_faults(next, p, events, 2, {Kind::kill, Kind::kill, Kind::hang, Kind::crash});
      const CopiedRun one = copied_run(p, next, faults, o);
      check_undisturbed(one, whole);
      const bool crash = std::any_of(faults.begin(), faults.end(), [](const auto& f) { return f.kind == Kind::crash; });
      for (const Incident& i : one.out.job.incidents) {
        if (i.from == "memory") {
          ++from_copies;
          CHECK(i.version % o.every == 0);
          CHECK(i.version <= i.committed);
          CHECK(i.committed - i.version <= o.every);
          repeated += i.version < i.committed;
          most = std::max(most, static_cast<int>(i.committed - i.version));
        } else {
          CHECK((crash ||
                 i.committed == 0));  // the memory of a place that crashed is not used, and no other has the same
          CHECK(i.version == 0);
          crashed += crash;
          none += !crash;
        }
      }
      if (next % 5 == 0) CHECK(copied_run(p, next, faults, o).out.run.digest == one.out.run.digest);
    }
  }
  CHECK(from_copies > test::of_drawn(90));
  CHECK(repeated > test::of_drawn(60) / 2);
  CHECK(crashed > test::of_drawn(15) / 2);
  CHECK((most == 4 || (most > 0 && test::one_in() > 1)));
}

TEST_CASE(
    "places that are gone for good, and planned changes: a job goes on in other shapes from the copies of all places; "
    "a planned change repeats no step") {
  int lost = 0, changed = 0;
  std::uint64_t next = 1;
  for (const KeptCase& c : {KeptCase{{2}}, KeptCase{{4}}, KeptCase{{3}, 1, 1}, KeptCase{{2}, 1, 3}, KeptCase{{2, 2}},
                            KeptCase{{1, 1, 1}}, KeptCase{{2}, 2}}) {
    const Plan p = kept_plan(c, Keeps::copies);
    CAPTURE(c.dp.size());
    CAPTURE(c.tp);
    CAPTURE(c.zero);
    const auto compiled = [&](const StageWidths& dp) -> Expected<Plan> {
      KeptCase other = c;
      other.dp = dp;
      return compile_kept(other, Keeps::copies);
    };
    const CopiedRun whole = copied_run(p, 0, {}, {0, false});
    CopiedOptions o;
    o.replan = [&](const Plan& plan, std::int64_t places) { return choose_shape(plan, places, compiled); };
    for (const StageWidths& dp : {StageWidths{1}, {2, 1}}) {
      auto plan = compiled(dp);
      REQUIRE(plan.ok());
      o.changes.push_back({std::make_shared<const Plan>(*std::move(plan)), "another", 0, {}});
    }
    for (const std::uint64_t end = next + 8; next < end; ++next) {
      if (!test::is_drawn(static_cast<unsigned>(next))) continue;
      CAPTURE(next);
      const std::int64_t events = copied_run(p, next, {}, o).out.run.events;
      std::vector<SimFault> faults;
      if (philox(next, 2, 15)[0] % 2 == 0) {
        faults = drawn_faults(next, p, events, 1, {Kind::kill, Kind::hang});
      } else {
        SimFault f;
        f.kind = Kind::change;
        f.at_event = static_cast<std::int64_t>(philox(next, 1, 15)[0]) % events;
        f.place = static_cast<Rank>(philox(next, 3, 15)[0] % 2);
        faults.push_back(f);
      }
      const CopiedRun one = copied_run(p, next, faults, o);
      check_undisturbed(one, whole);
      for (const Incident& i : one.out.job.incidents) {
        CAPTURE(i.cause);
        if (i.planned) {
          CHECK(i.from == "memory");
          CHECK(i.version == i.committed);
          ++changed;
        } else if (!i.lost.empty()) {
          CHECK((i.from == "memory" || i.committed == 0));
          CHECK(i.committed - i.version <= o.every);
          ++lost;
        }
      }
    }
  }
  CHECK(lost > test::of_drawn(14) / 2);
  CHECK(changed > (test::one_in() > 1 ? 0 : 8));
}

TEST_CASE("a plan of which some parameter is not copied is refused by its name, and so are slots beside copies") {
  const auto refused = [](const Plan& p, const std::string& why) {
    const Status s = verify(p);
    CHECK_FALSE(s.ok());
    CHECK_MESSAGE(s.message().find(why) != std::string::npos, s.message());
  };
  Plan p = kept_plan({{2}}, Keeps::copies);
  const auto copy = std::find_if(p.roles[0].actors.begin(), p.roles[0].actors.end(),
                                 [](const PlanActor& a) { return a.kind == PlanActor::Kind::copy; });
  REQUIRE(copy != p.roles[0].actors.end());
  const std::string name = p.params[copy->params.back().param].name;
  copy->params.pop_back();
  refused(p, "parameter '" + name + "' has 0 copies; it needs 1");
  Plan both = kept_plan({{2}});
  both.programs.push_back({"copy", {}, false, {}});
  refused(both, "keeps a version in slots, and copies of others");
  CompileOptions o;
  o.keeps_version = o.keeps_copies = true;
  const auto compiled = compile(graph(ops(), Shape_{}), o);
  REQUIRE_FALSE(compiled.ok());
  CHECK(compiled.status().message().find("keeps_copies") != std::string::npos);
}

TEST_CASE("the first version and each multiple of SessionOptions::copy_every are copied, but not the last one") {
  const Plan p = kept_plan({{2}}, Keeps::copies);
  const auto copied = [&](std::int64_t steps) {
    std::set<std::int64_t> versions;
    SessionOptions session;
    session.first_step = 5;
    session.steps = steps;
    session.copy_every = 4;
    SimClusterOptions cluster;
    cluster.at_end = [&](Rank, const Worker& w) {
      for (const HeldVersion& h : w.held()) versions.insert(h.version);
    };
    REQUIRE(simulate_job(p, ops(), actor_set(), session, cluster).job.status.ok());
    return versions;
  };
  CHECK(copied(8) == std::set<std::int64_t>{5});
  CHECK(copied(9) == std::set<std::int64_t>{5, 8});
  CHECK(copied(12) == std::set<std::int64_t>{5, 8});
  CHECK(copied(13) == std::set<std::int64_t>{8, 12});
}

TEST_CASE("parameters that nothing trains are copied without moments, and a place may have nothing to copy") {
  Graph g(ops());
  const auto data = [&](const std::string& name, std::int64_t width) {
    return g.actor("data", name, {}, {{name, {DType::f32, {2, width}}}},
                   {{"stream", std::string(name.substr(0, 1))}})[0];
  };
  g.program("evaluate", {2, 2});
  g.unit("all");
  const Value seen = data("x_eval", 8);
  g.report(
      "eval_loss",
      g.op("mse_loss", {g.op("linear", {seen, g.param("fixed", {1, 8}, Init::normal(0.3f))})[0], data("t_eval", 1)},
           {{"scale", 0.25}})[0]);
  g.program("train", {2, 2});
  const Value y = g.op("linear", {data("x", 8), g.param("w", {1, 8}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {y, data("t", 1)}, {{"scale", 0.25}})[0], {});
  CompileOptions o;
  o.stages = stage_meshes({2});
  o.keeps_copies = true;
  const auto plan = compile(g, o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const Status verified = verify(*plan);
  REQUIRE_MESSAGE(verified.ok(), verified.message());
  std::map<std::string, std::int64_t> parts;
  std::vector<std::size_t> copied;
  for (Rank r = 0; r < 2; ++r) {
    const auto local = local_plan(*plan, r);
    REQUIRE(local.ok());
    copied.push_back(0);
    for (const LocalActor& a : local->actors)
      for (const CopiedPart& part : a.copied) {
        ++parts[plan->params[part.param].name];
        ++copied.back();
      }
    CHECK(local->copies_bytes >= 4096);
  }
  CHECK(parts == std::map<std::string, std::int64_t>{{"fixed", 1}, {"w", 3}});
  CHECK(std::min(copied[0], copied[1]) == 0);
  CHECK(is_whole(*plan, [](Rank) { return true; }));
  CHECK_FALSE(is_whole(*plan, [&](Rank r) { return copied[static_cast<std::size_t>(r)] == 0; }));
  const CopiedRun whole = copied_run(*plan, 0, {}, {0, false});
  int from_copies = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    const CopiedOptions every{2};
    const std::int64_t events = copied_run(*plan, seed, {}, every).out.run.events;
    const CopiedRun one = copied_run(*plan, seed, drawn_faults(seed, *plan, events, 2, {Kind::kill}), every);
    check_undisturbed(one, whole);
    for (const Incident& i : one.out.job.incidents) from_copies += i.from == "memory";
  }
  CHECK(from_copies > 20);
}

TEST_CASE("a step waits for the copies of versions up to its own, and for no later one (CO-7 copies)") {
  struct Sink final : DecisionSink {
    std::vector<std::int32_t> reads;
    Expected<std::vector<std::int32_t>> readers(std::int64_t, bool) override { return reads; }
    void snapshot_skipped(std::int64_t) override {}
    void go(ProgramStep) override {}
    Expected<std::vector<std::int32_t>> feed(const PlanFeed&, ProgramStep, std::int32_t, const Report*) override {
      return std::vector<std::int32_t>{};
    }
  };
  const Plan plan = kept_plan({{1}}, Keeps::copies);
  const std::int32_t train = plan.program("train"), copy = plan.program("copy");
  Sink sink;
  const std::int32_t evaluate = plan.program("evaluate");
  sink.reads = {copy, evaluate};  // version 0
  Decisions d(plan, 0, 9, votes(plan), sink);
  REQUIRE(d.begin().ok());
  REQUIRE(d.begin_due().ok());
  CHECK(d.vote({train, 0}, 0));
  CHECK_FALSE(d.due_commit());
  CHECK(d.oldest_read() == 0);
  CHECK(d.vote({evaluate, 0}, 0));
  CHECK_FALSE(d.oldest_read());  // a copy that is cut off is not taken again: an older one is gone on from
  CHECK(d.vote({copy, 0}, 0));
  CHECK(d.due_commit() == 0);
  REQUIRE(d.commit().ok());  // version 1 is copied and evaluated, too
  REQUIRE(d.begin_due().ok());
  CHECK(d.vote({copy, 1}, 0));
  CHECK_FALSE(d.due_commit());  // step 1 has no vote
  CHECK(d.vote({train, 1}, 0));
  CHECK(d.due_commit() == 1);
  sink.reads = {};
  REQUIRE(d.commit().ok());
  REQUIRE(d.begin_due().ok());
  CHECK(d.vote({train, 2}, 0));
  CHECK_FALSE(d.due_commit());  // CO-6 (readers): version 1 is still evaluated
  CHECK(d.vote({evaluate, 1}, 0));
  CHECK(d.due_commit() == 2);
}
