// Runs that their actors end (UserCall::finish): with which step, whatever the mesh, the timing and what is lost.
#include <doctest/doctest.h>

#include <memory>
#include <set>

#include "devices/sim/sim_storage.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/commits_at_once.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Gives zeros; finishes from step `until` on, in a microbatch m m steps later. What acts behind the end it counts.
class Input final : public actors::UserActor {
 public:
  explicit Input(const actors::UserActorInfo& info) : until_(info.attrs.integer("until")) {}
  Status act(actors::UserCall& call) override {
    std::fill_n(call.out[0].as<float>(), call.out[0].size(), 0.25f);
    if (call.step >= until_ + call.microbatch) call.finish();
    return {};
  }

 private:
  std::int64_t until_;
};

actors::UserActorSet kinds_of_inputs() {
  auto set = actor_set();
  set["input"] = [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Input>(info));
  };
  return set;
}

constexpr std::int64_t microbatches_of_a_step = 4;

/// One actor for each entry of `until`; its name ends with its index.
Graph graph_of_inputs(const std::vector<std::int64_t>& until, bool trains, bool says = true) {
  Graph g(ops());
  g.program("main", {microbatches_of_a_step, 2});
  Value sum = kernels::no_value;
  g.unit("in");
  for (std::size_t i = 0; i < until.size(); ++i) {
    const Value x = g.actor("input", "input" + std::to_string(i), {}, {{"x", {DType::f32, {2, 6}}}},
                            {{"until", until[i]}, {"finishes", std::int64_t{says ? 1 : 0}}})[0];
    sum = i == 0 ? x : g.op("add", {sum, x})[0];
  }
  g.unit("out");
  if (trains) {
    const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 6}}}}, {{"stream", std::string("t")}})[0];
    const Value y = g.op("linear", {sum, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
    g.minimize(g.op("mse_loss", {y, t}, {{"scale", 1.0 / 8}})[0], {});
  } else {
    g.report("x", g.op("relu", {sum})[0]);
  }
  return g;
}

/// What a run has told: how many steps have closed, and how it ended.
struct Ended {
  std::int64_t steps = 0;
  SimOutcome end;
};

Ended run_inputs(const Graph& g, const CompileOptions& o, std::int64_t steps, const SimClusterOptions& cluster = {}) {
  Ended told;
  const auto plan = compile(g, o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  REQUIRE(verify(*plan).ok());
  SessionOptions session;
  session.steps = steps;
  session.loss_divisor = 8;
  session.on_step = [&](const StepResult& r) { told.steps = r.step + 1; };
  session.on_closed = [&](const std::string&, std::int64_t step, const std::vector<Report>& reports) {
    told.steps = step + 1;
    for (const Report& r : reports) CHECK(r.name == "x");  // nothing that the application has not reported
  };
  told.end = simulate_job(*plan, ops(), kinds_of_inputs(), session, cluster);
  return told;
}

CompileOptions on(const std::vector<std::int64_t>& dp) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  return o;
}

const std::vector<std::vector<std::int64_t>> widths = {{1}, {3}, {4}, {1, 1}, {2, 1}, {3, 2}};

}  // namespace

TEST_CASE("a run ends with the step behind that in which the last place has finished, on any mesh and in any timing") {
  for (const bool trains : {false, true})
    for (const auto& dp : widths)
      for (const std::int64_t until : {0, 1, 5}) {
        CAPTURE(trains);
        CAPTURE(until);
        CAPTURE(dp[0]);
        // Place d has microbatch d first, and finishes in step until + d.
        const std::int64_t expected = until + dp[0] - 1 + 2;
        for (const std::uint64_t seed : {0, 1, 2}) {
          SimClusterOptions cluster;
          cluster.seed = seed;
          const Ended told = run_inputs(graph_of_inputs({until}, trains), on(dp), 50, cluster);
          REQUIRE_MESSAGE(told.end.job.status.ok(), told.end.job.status.message());
          CHECK(told.steps == expected);
        }
        const Ended early = run_inputs(graph_of_inputs({until}, trains), on(dp), 3);
        CHECK(early.steps == std::min<std::int64_t>(3, expected));
      }
}

TEST_CASE("of several actors that end a run the last one does") {
  CHECK(run_inputs(graph_of_inputs({2, 7}, false), on({1}), 50).steps == 9);
  CHECK(run_inputs(graph_of_inputs({7, 2, 3}, false), on({1, 1}), 50).steps == 9);
}

TEST_CASE(
    "a run that its actors end has the parameters of one that was given as many steps, whatever worker is lost "
    "meanwhile") {
  CompileOptions o = on({2, 1});
  o.seed = 7;
  o.keeps_version = true;
  const Ended given = run_inputs(graph_of_inputs({100}, true), o, 7);
  const Ended whole = run_inputs(graph_of_inputs({4}, true), o, 50);
  CHECK(whole.steps == 7);
  CHECK_FALSE(given.end.job.params_hash.empty());
  CHECK(whole.end.job.params_hash == given.end.job.params_hash);
  int lost = 0;
  for (std::int64_t at = 40; at < whole.end.run.events; at += std::max<std::int64_t>(1, whole.end.run.events / 40)) {
    SimClusterOptions cluster;
    cluster.seed = static_cast<std::uint64_t>(at);
    cluster.recovers = true;
    cluster.stall_s = 120;
    cluster.faults = {{.at_event = at, .place = static_cast<Rank>(at % 3)}};
    const Ended one = run_inputs(graph_of_inputs({4}, true), o, 50, cluster);
    CAPTURE(at);
    REQUIRE_MESSAGE(one.end.job.status.ok(), one.end.job.status.message());
    lost += one.end.run.restarts;
    CHECK(one.steps == 7);
    CHECK(one.end.job.params_hash == given.end.job.params_hash);
  }
  CHECK(lost > 20);
}

TEST_CASE("a run that its actors end while it is about to change its mesh ends with the same step, and parameters") {
  CompileOptions before = on({2, 1}), behind = on({2});
  for (CompileOptions* o : {&before, &behind}) o->seed = 7, o->keeps_version = true;
  const Graph g = graph_of_inputs({4}, true);
  const Ended whole = run_inputs(g, before, 50);
  const auto next = std::make_shared<const Plan>(*compile(g, behind));
  int changes = 0;
  for (std::int64_t at = 40; at < whole.end.run.events; at += 7) {
    CAPTURE(at);
    SimClusterOptions cluster;
    cluster.recovers = true;
    cluster.stall_s = 120;
    cluster.changes = {{next, "dp=2", 0, {}}};
    cluster.faults = {{.at_event = at, .kind = SimFault::Kind::change, .place = 0}};
    const Ended one = run_inputs(g, before, 50, cluster);
    REQUIRE_MESSAGE(one.end.job.status.ok(), one.end.job.status.message());
    changes += one.end.run.changes;
    CHECK(one.steps == 7);
    CHECK(one.end.job.params_hash == whole.end.job.params_hash);
  }
  CHECK(changes > 10);
}

namespace {

/// Wants the last version only.
struct LastOnly final : CommitsAtOnce {
  std::int64_t last = 50;
  std::set<std::int64_t> saved;
  bool wants(std::int64_t version) const override { return version == last; }
  void written(std::int64_t version, const std::vector<Report>&, const SumState&) override { saved.insert(version); }
  void end_with(std::int64_t version) override { last = version; }
};

}  // namespace

TEST_CASE("the version with which actors end a run is its last one: a checkpoint of it is taken") {
  LastOnly saves;
  SimStorage disk;
  REQUIRE(disk.make_dir("c").ok());
  CompileOptions o = on({2, 1});
  o.snapshots = 2;
  SimClusterOptions cluster;
  cluster.storage = &disk;
  cluster.save = {"c", 1};
  cluster.snapshots = &saves;
  const Ended told = run_inputs(graph_of_inputs({4}, true), o, 50, cluster);
  REQUIRE_MESSAGE(told.end.job.status.ok(), told.end.job.status.message());
  CHECK(told.steps == 7);
  CHECK(saves.saved == std::set<std::int64_t>{7});
}

TEST_CASE("an actor ends the run of a program with a delay, on a stage of several replicas and under tp") {
  Graph g(ops());
  g.program("main", {.microbatches = 4, .samples = 2, .stateful = true});
  const kernels::TensorType type{DType::f32, {2, 6}};
  const Value before = g.delay("before", type);
  const Value x = g.actor("input", "input0", {}, {{"x", type}}, {{"until", 3}, {"finishes", 1}})[0];
  g.feed_back(before, x);
  g.report("x", g.op("add", {x, before})[0]);
  CompileOptions tp;
  tp.stages = stage_meshes({1}, 2);
  for (const CompileOptions& o : {on({1}), on({3}), tp}) {
    const Ended told = run_inputs(g, o, 50);
    REQUIRE_MESSAGE(told.end.job.status.ok(), told.end.job.status.message());
    CHECK(told.steps == 5);
  }
}

TEST_CASE("finish() of an actor without the attribute, and the attribute in a program that ends no run, are refused") {
  const Ended told = run_inputs(graph_of_inputs({1}, false, false), on({1}), 50);
  CHECK(told.end.job.status.message().find("actor 'input0'") != std::string::npos);
  CHECK(told.end.job.status.message().find("for an actor with the attribute \"finishes\"") != std::string::npos);
  Graph g = graph_of_inputs({1}, true);
  g.program("evaluate", {1, 2});
  g.actor("input", "other", {}, {{"x", {DType::f32, {2, 6}}}}, {{"finishes", 1}});
  const Status refused = compile(g, on({1})).status();
  CHECK(refused.message().find("actor 'other' has the attribute \"finishes\", and its program 'evaluate'") !=
        std::string::npos);
  Graph waits = graph_of_inputs({1}, false);
  waits.actor("input", "socket", {}, {{"x", {DType::f32, {2, 6}}}}, {{"waits", 1}});
  CHECK(compile(waits, on({1}))
            .status()
            .message()
            .find("actor 'socket' waits for the outside, and the run, which "
                  "'input0' ends, would not end before it") != std::string::npos);
  Graph says = graph_of_inputs({1}, false);
  says.actor("input", "socket", {}, {{"x", {DType::f32, {2, 6}}}}, {{"waits", std::string("yes")}});
  CHECK(says.status().message() == "actor 'socket': the attribute \"waits\" is 1, or 0");
}
