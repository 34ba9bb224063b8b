// Parameters that are handed over to others, with a lag (Graph::hand_over).
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <optional>

#include "tests/runtime/compiled.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

const Shape shape = {12, 8};
constexpr float begins = 0.125f;

/// A learner, and a player that reads the learner's weights as they were `lag` versions before, beside its own; each
/// trains. As models, or as units of one.
Graph learner_and_player(std::int64_t lag, bool models) {
  Graph g(ops());
  const auto data = [&](const std::string& name, std::int64_t width) {
    return g.actor("data", name, {}, {{"x", {DType::f32, {2, width}}}}, {{"stream", name}})[0];
  };
  const auto begin = [&](const std::string& name) { models ? g.model(name) : g.unit(name); };
  g.program("learn", {6, 2});
  begin("learner");
  const Value w = g.param("w", shape, Init::normal(0.3f));
  g.minimize(g.op("mse_loss", {g.op("linear", {data("x", 8), w})[0], data("t", 12)}, {{"scale", 0.1}})[0], {});
  g.program("play", {4, 2});
  begin("player");
  const Value seen = g.param("seen", shape, Init::constant(begins));
  const Value own = g.param("own", {5, 12}, Init::normal(0.3f));
  const Value y = g.op("linear", {g.op("relu", {g.op("linear", {data("z", 8), seen})[0]})[0], own})[0];
  g.minimize(g.op("mse_loss", {y, data("u", 5)}, {{"scale", 0.1}})[0], {}, {own});
  g.hand_over(w, seen, lag);
  return g;
}

SimOutcome trained(const Plan& p, std::int64_t steps, const SimClusterOptions& cluster = {},
                   std::int64_t copy_every = 0, std::optional<SumState> sums = {},
                   std::vector<std::string> parameters = {"w", "seen", "own"}) {
  SessionOptions session;
  session.steps = steps;
  session.parameters = std::move(parameters);
  session.sums = std::move(sums);
  session.lr = [](std::int64_t) { return 1e-2; };
  session.copy_every = copy_every;
  SimOutcome out = simulate_job(p, ops(), actor_set(), std::move(session), cluster);
  REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
  return out;
}

std::vector<float> value_of(const SimOutcome& run, const std::string& param) {
  return run.job.parameters.at(param).values;
}

std::vector<CompileOptions> all_meshes(bool models) {
  std::vector<CompileOptions> all;
  const auto add = [&](std::int32_t zero, std::vector<Mesh> learner, std::vector<Mesh> player) {
    CompileOptions o;
    o.seed = 7;
    o.zero = zero;
    o.keeps_version = all.size() % 2 == 1;
    if (models) o.models = {{"learner", std::move(learner)}, {"player", std::move(player)}};
    else o.stages = std::move(learner);
    all.push_back(std::move(o));
  };
  for (const std::int32_t zero : {0, 1, 2, 3}) {
    add(zero, stage_meshes({3}), stage_meshes({1}, 2));
    add(zero, stage_meshes({1}, 2), stage_meshes({3}));
    add(zero, stage_meshes({2}), stage_meshes({2}));
  }
  if (!models)
    for (CompileOptions& o : all) o.stages = stage_meshes({1, static_cast<std::int64_t>(o.stages[0].size())});
  add(0, stage_meshes({1}), stage_meshes({1}));
  return all;
}

}  // namespace

TEST_CASE("version v of what is handed over is version v - lag of the other one, bit by bit, on any two meshes") {
  for (const bool models : {false, true})
    for (const std::int64_t lag : {1, 2, 4}) {
      const Graph g = learner_and_player(lag, models);
      REQUIRE_MESSAGE(g.status().ok(), g.status().message());
      CompileOptions alone;
      alone.seed = 7;
      if (models) alone.models = {{"learner", stage_meshes({1})}, {"player", stage_meshes({1})}};
      std::vector<std::vector<float>> learned;  // by version
      for (std::int64_t steps = 0; steps <= 6; ++steps)
        learned.push_back(value_of(trained(compiled(g, alone), steps), "w"));
      REQUIRE(learned[0] != learned[1]);
      const std::vector<float> own = value_of(trained(compiled(g, alone), 6), "own");
      for (const CompileOptions& o : all_meshes(models)) {
        CAPTURE(models);
        CAPTURE(lag);
        CAPTURE(o.zero);
        const Plan p = compiled(g, o);
        const bool divided = std::any_of(p.meshes.begin(), p.meshes.end(),
                                         [](const Mesh& m) { return has_model_axis(m); });
        for (const std::int64_t steps : {1, 3, 6}) {
          const SimOutcome run = trained(p, steps);
          const std::vector<float> w = value_of(run, "w"), seen = value_of(run, "seen");
          if (!divided) CHECK(w == learned[static_cast<std::size_t>(steps)]);
          if (!divided && steps == 6) CHECK(value_of(run, "own") == own);
          if (steps < lag) {
            CHECK(seen == std::vector<float>(96, begins));
          } else {
            CHECK(seen == value_of(trained(p, steps - lag), "w"));
          }
        }
      }
    }
}

TEST_CASE("a place of either model is lost at any event: what is handed over goes on, bit for bit") {
  int lost = 0;
  for (const bool copies : {false, true}) {
    CompileOptions o;
    o.seed = 7;
    o.zero = 1;
    o.keeps_version = !copies;
    o.keeps_copies = copies;
    o.models = {{"learner", stage_meshes({2})}, {"player", stage_meshes({1}, 2)}};
    const Plan p = compiled(learner_and_player(2, true), o);
    const std::int64_t copy_every = copies ? 2 : 0;
    const SimOutcome whole = trained(p, 6, {}, copy_every);
    for (std::int64_t at = 60; at < whole.run.events; at += whole.run.events / 12) {
      SimClusterOptions cluster;
      cluster.seed = static_cast<std::uint64_t>(at);
      cluster.recovers = true;
      cluster.stall_s = 120;
      cluster.faults = {{.at_event = at, .place = static_cast<Rank>(at % p.workers())}};
      const SimOutcome one = trained(p, 6, cluster, copy_every);
      lost += one.run.restarts;
      for (const char* name : {"w", "seen", "own"}) CHECK(value_of(one, name) == value_of(whole, name));
    }
  }
  CHECK(lost > 12);
}

TEST_CASE("a void step of the receiving program, or of the other one, changes no lag") {
  for (const std::int64_t lag : {1, 3})
    for (const bool keeps : {false, true})
      for (const char* overflows : {"own", "w"}) {
        CAPTURE(lag);
        CAPTURE(overflows);
        CompileOptions o;
        o.seed = 7;
        o.keeps_version = keeps;
        o.models = {{"learner", stage_meshes({2})}, {"player", stage_meshes({1})}};
        const Plan p = compiled(learner_and_player(lag, true), o);
        SumState sums;
        sums.scales[overflows] = {60, 0};  // too fine for any gradient: the first step is void
        for (std::int64_t steps = 1; steps <= 5; ++steps) {
          const SimOutcome run = trained(p, steps, {}, 0, sums);
          CHECK(run.run.sums.programs.at(*overflows == 'o' ? "play" : "learn").updates < steps);
          if (steps >= lag) CHECK(value_of(run, "seen") == value_of(trained(p, steps - lag, {}, 0, sums), "w"));
          else CHECK(value_of(run, "seen") == std::vector<float>(96, begins));
        }
      }
}

TEST_CASE("one parameter is handed over twice, and on from there; two change places") {
  Graph g = learner_and_player(1, false);
  const Value w = g.param("w", shape, Init::normal(0.3f));
  std::map<std::string, Value> made;
  for (const char* name : {"again", "on", "left", "right"}) made[name] = g.param(name, shape, Init::constant(2));
  g.hand_over(w, made["again"], 2);
  g.hand_over(made["again"], made["on"], 1);
  const Value third = g.param("third", shape, Init::constant(5));
  g.hand_over(made["left"], made["right"]);
  g.hand_over(made["right"], third);
  g.hand_over(third, made["left"]);
  REQUIRE_MESSAGE(g.status().ok(), g.status().message());
  for (const std::int32_t zero : {0, 1, 3})
    for (const auto& dp : std::vector<std::vector<std::int64_t>>{{1}, {2}, {1, 2}}) {
      CompileOptions o;
      o.seed = 7;
      o.zero = zero;
      o.stages = stage_meshes(dp);
      o.keeps_version = zero == 1;
      const Plan p = compiled(g, o);
      const std::vector<std::string> names = {"w", "seen", "own", "again", "on", "left", "right", "third"};
      const SimOutcome run = trained(p, 5, {}, 0, {}, names);
      CHECK(value_of(run, "seen") == value_of(trained(p, 4), "w"));
      CHECK(value_of(run, "again") == value_of(trained(p, 3), "w"));
      CHECK(value_of(run, "on") == value_of(trained(p, 2), "w"));
      // 2, 2, 5 go round: after five steps left has what third had two steps before.
      CHECK(value_of(run, "left") == std::vector<float>(96, 2));
      CHECK(value_of(run, "right") == std::vector<float>(96, 5));
      CHECK(value_of(run, "third") == std::vector<float>(96, 2));
    }
}

TEST_CASE("what cannot be handed over is refused, by name") {
  const auto says = [](const std::function<void(Graph&, Value w, Value seen)>& build) {
    Graph g(ops());
    g.program("train", {2, 2});
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 4}}}}, {{"stream", std::string("x")}})[0];
    const Value w = g.param("w", {4, 4}, Init::normal(0.3f)), seen = g.param("seen", {4, 4}, Init::constant(0));
    g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], x}, {})[0], {});
    build(g, w, seen);
    if (!g.status().ok()) return g.status().message();
    const auto p = compile(g, {});
    return p.ok() ? std::string("accepted") : p.status().message();
  };
  CHECK(says([](Graph& g, Value w, Value seen) { g.hand_over(w, seen); }) == "accepted");
  CHECK(says([](Graph& g, Value w, Value seen) { g.hand_over(w, seen, 0); }) ==
        "hand_over of 'w' to 'seen' with lag 0: expected 1 to 1000; ops that read 'w' itself have its version of the "
        "step");
  CHECK(says([](Graph& g, Value w, Value seen) { g.hand_over(w, seen, 1001); }).find("expected 1 to 1000") !=
        std::string::npos);
  CHECK(says([](Graph& g, Value w, Value seen) {
          g.param("seen.lag1", {4, 4}, Init::constant(0));
          g.hand_over(w, seen, 2);
        }).find("keeps a version as parameter 'seen.lag1', a name that this graph has") != std::string::npos);
  CHECK(says([](Graph& g, Value w, Value) { g.hand_over(w, w); }) == "hand_over of 'w' to itself");
  CHECK(says([](Graph& g, Value w, Value) { g.hand_over(w, g.param("v", {4}, Init::constant(0))); }) ==
        "next version of 'v': 'w.handed' is f32 [4, 4], and the parameter f32 [4]");
  CHECK(says([](Graph& g, Value w, Value seen) {
          g.hand_over(w, seen);
          g.hand_over(w, seen, 2);
        }) == "next version of 'seen' has been said already: each parameter has one");
  CHECK(says([](Graph& g, Value, Value seen) {
          g.hand_over(g.param("unread", {4, 4}, Init::constant(0)), seen);
        }) == "next version of 'seen': parameter 'unread', which is handed over, is read by no op and made by none");
  CHECK(says([](Graph& g, Value w, Value seen) { g.hand_over(g.gradient(w), seen); }) ==
        "hand_over: 'w.gradient' is no parameter");
}
