// The order in which a graph names its units, and the stages on which they are put, change no number.
#include <doctest/doctest.h>

#include <numeric>

#include "runtime/verify/verify.h"
#include "tests/runtime/compiled.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/random_graph.h"

using namespace mlp;

namespace {

CompileOptions placing_of(unsigned seed, const RandomCase& c) {
  CompileOptions o;
  o.seed = seed;
  o.stages = stage_meshes(c.dp);
  o.stage_of_unit = c.stage_of_unit;
  o.pipeline = c.pipeline;
  o.zero = static_cast<std::int32_t>(seed % 4);
  o.owners = c.owners;
  return o;
}

/// Compiles, verifies and runs.
Expected<RandomOutcome> outcome_of(const Graph& g, const CompileOptions& o, const kernels::OpSet& ops,
                                   const RandomCase& c) {
  TROUPE_ASSIGN(const Plan p, compile(g, o));
  TROUPE_TRY(verify(p).in("verify"));
  return train_case(p, ops, c, c.network_seed);
}

/// The units of each stage, in alphabetical order.
std::vector<std::vector<std::string>> units_of(const Plan& p) {
  std::vector<std::vector<std::string>> out;
  for (const auto& role : p.roles) {
    out.push_back(role.units);
    std::sort(out.back().begin(), out.back().end());
  }
  return out;
}

}  // namespace

TEST_CASE(
    "units that are declared in any order are cut into the same stages, and give the same bits, as in the order of the "
    "data") {
  const auto ops = kernels::standard_ops();
  int shuffled_differently = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    if (!test::is_drawn(seed)) continue;
    RandomCase c;
    const Graph g = RandomGraph(ops, seed).graph(c);
    std::vector<std::size_t> at(g.units().size());
    std::iota(at.begin(), at.end(), std::size_t{0});
    std::mt19937 random(seed);
    std::shuffle(at.begin(), at.end(), random);
    shuffled_differently += !std::is_sorted(at.begin(), at.end());
    std::vector<std::string> names;
    for (const auto u : at) names.push_back(g.units()[u]);
    RandomCase other;
    const Graph h = RandomGraph(ops, seed, names).graph(other);
    REQUIRE(h.units() == names);
    auto o = placing_of(seed, c);
    for (std::size_t u = 0; u < o.stage_of_unit.size(); ++u) other.stage_of_unit[u] = c.stage_of_unit[at[u]];
    CAPTURE(seed);
    CAPTURE(c.text);
    const auto a = outcome_of(g, o, ops, c), b = outcome_of(h, placing_of(seed, other), ops, c);
    REQUIRE_MESSAGE(a.ok(), a.status().message());
    REQUIRE_MESSAGE(b.ok(), b.status().message());
    CHECK(difference(*a, *b) == "");
    o.stage_of_unit = {};  // cut by cost
    const auto p = compile(g, o), q = compile(h, o);
    REQUIRE(p.ok());
    REQUIRE_MESSAGE(q.ok(), q.status().message());
    CHECK(units_of(*p) == units_of(*q));
  }
  CHECK(shuffled_differently > test::of_drawn(60));
}

TEST_CASE(
    "units may be put on stages in any order, back and forth: the plan gives one worker's bits, or what its schedule "
    "or ZeRO 3 cannot do is named") {
  const auto ops = kernels::standard_ops();
  int back = 0, refused = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    if (!test::is_drawn(seed)) continue;
    RandomCase c;
    const Graph g = RandomGraph(ops, seed).graph(c);
    const auto virtual_stages = static_cast<std::int32_t>(c.dp.size()) * c.pipeline.chunks;
    if (virtual_stages < 2) continue;
    std::mt19937 random(seed);
    auto o = placing_of(seed, c);
    o.stage_of_unit.clear();
    for (std::size_t u = 0; u < g.units().size(); ++u)  // each stage once, then any
      o.stage_of_unit.push_back(u < static_cast<std::size_t>(virtual_stages)
                                    ? static_cast<std::int32_t>(u)
                                    : static_cast<std::int32_t>(random() % static_cast<unsigned>(virtual_stages)));
    std::shuffle(o.stage_of_unit.begin(), o.stage_of_unit.end(), random);
    std::string stages;
    for (const auto s : o.stage_of_unit) stages += " " + std::to_string(s);
    CompileOptions one;
    one.seed = seed;
    CAPTURE(seed);
    CAPTURE(c.text);
    CAPTURE(stages);
    const auto a = outcome_of(g, one, ops, c), b = outcome_of(g, o, ops, c);
    REQUIRE_MESSAGE(a.ok(), a.status().message());
    const bool ordered = c.pipeline.kind != Pipeline::Kind::one_f_one_b &&
                         std::count(c.dp.begin(), c.dp.end(), c.dp[0]) == std::ssize(c.dp);
    if ((ordered || o.zero == 3) && b.status().message().find(": with ") != std::string::npos) {
      const std::string why = ": with " + (ordered ? "pipeline schedule " + to_string(c.pipeline) : "ZeRO 3") +
                              " data goes to the same stage or to later ones; choose other stages "
                              "(CompileOptions::stage_of_unit), or " +
                              (ordered ? "1f1b" : "ZeRO 2");
      CHECK_MESSAGE(b.status().message().find(why) != std::string::npos, b.status().message());
      CHECK_FALSE(std::is_sorted(o.stage_of_unit.begin(), o.stage_of_unit.end()));
      ++refused;
      continue;
    }
    REQUIRE_MESSAGE(b.ok(), b.status().message());
    CHECK(difference(*a, *b) == "");
    back += !std::is_sorted(o.stage_of_unit.begin(), o.stage_of_unit.end());
  }
  MESSAGE(back << " graphs ran back and forth, " << refused << " were refused");
  CHECK(back > test::of_drawn(60));
  CHECK(refused >= test::of_drawn(30));
}

namespace {

/// A program that trains layers, each in the unit of its index, and one that evaluates the same ones. `skips`: each
/// layer reads what the layer before the last one makes, too.
Graph layers_in(const std::vector<std::string>& units, bool skips) {
  Graph g(ops());
  for (const std::string program : {"train", "evaluate"}) {
    g.program(program, {4, 2});
    g.unit(units[0]);
    std::vector<Value> made = {
        g.actor("data", program + ".x", {}, {{"x", {DType::f32, {2, 12}}}}, {{"stream", std::string("x")}})[0]};
    for (std::size_t l = 0; l < units.size(); ++l) {
      const std::string name = "w" + std::to_string(l), own = program + "." + name;
      g.unit(units[l]);
      Value y = g.op("linear", {made.back(), g.param(name, {12, 12}, Init::normal(0.4f))}, {}, own + ".linear")[0];
      y = g.op("relu", {y}, {}, own + ".relu")[0];
      if (skips && l >= 2) y = g.op("add", {y, made[made.size() - 2]}, {}, own + ".add")[0];
      made.push_back(y);
    }
    const Value t = g.actor("data", program + ".t", {}, {{"t", {DType::f32, {2, 12}}}},
                            {{"stream", std::string("t")}})[0];
    const Value loss = g.op("mse_loss", {made.back(), t}, {{"scale", 0.1}}, program + ".loss")[0];
    if (program == "train") g.minimize(loss, {});
    else g.report("evaluated", loss);
  }
  return g;
}

/// Losses, norms, and the losses of an evaluation after each step.
std::vector<double> numbers_of(const Plan& p) {
  std::vector<double> all;
  std::map<std::int64_t, double> evaluated;
  SessionOptions session;
  session.steps = 3;
  session.readers = [](std::int64_t version) {
    return version > 0 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  session.on_closed = [&](const std::string&, std::int64_t version, const std::vector<Report>& reports) {
    for (const Report& report : reports) evaluated[version] += report.values.at(0);
  };
  const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {.seed = 3});
  REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
  for (const StepResult& step : out.run.steps) all.insert(all.end(), {step.loss, step.grad_norm});
  REQUIRE(evaluated.size() == 3);
  for (const auto& [version, loss] : evaluated) all.push_back(loss);
  return all;
}

}  // namespace

TEST_CASE(
    "data that leaves a unit and comes back to it, on one stage or over others, gives the bits of units in a row") {
  constexpr std::size_t layers = 7;
  std::vector<std::string> in_a_row;
  for (std::size_t l = 0; l < layers; ++l) in_a_row.push_back("unit" + std::to_string(l));
  const auto options = [](const std::vector<std::int64_t>& dp, std::int64_t tp, std::int32_t zero) {
    CompileOptions o;
    o.seed = 5;
    o.stages = stage_meshes(dp, tp);
    o.zero = zero;
    return o;
  };
  int parts = 0, refused = 0;
  for (const bool skips : {false, true}) {
    const auto expected = numbers_of(compiled(layers_in(in_a_row, skips), options({1}, 1, 0)));
    const auto expected_tp = numbers_of(compiled(layers_in(in_a_row, skips), options({1}, 2, 0)));
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      std::vector<std::string> units;
      for (std::uint64_t l = 0; l < layers; ++l)
        units.push_back(std::string(1, static_cast<char>('u' + philox(philox_key(seed, "units"), l, 0)[0] % 3)));
      if (seed == 3) units = {"u", "v", "w", "x", "u", "y", "z"};  // no two read each other
      const Graph g = layers_in(units, skips);
      CAPTURE(seed);
      for (const std::int64_t dp : {1, 2}) {
        CompileOptions o = options({dp}, 1, static_cast<std::int32_t>(seed % 4));
        if (const auto tried = compile(g, o); o.zero == 3 && !tried.ok()) {
          CHECK(tried.status().message().find("with ZeRO 3 units of a stage follow each other; name a unit") !=
                std::string::npos);
          ++refused;
          o.zero = 2;
        }
        const Plan p = compiled(g, o);
        CHECK(numbers_of(p) == expected);
        for (const PlanActor& a : p.roles[0].actors) parts += a.name.ends_with(".fwd.1");
        o = options({dp}, 2, 0);
        o.pipeline.weights_apart = seed % 2 == 0;
        CHECK(numbers_of(compiled(g, o)) == expected_tp);
        if (g.units().size() < 2) continue;
        o = options({dp, 1}, 1, static_cast<std::int32_t>(seed % 3));  // data goes back to earlier stages
        CHECK(numbers_of(compiled(g, o)) == expected);
      }
    }
    // Passes that have an order, in which data leaves a unit of a stage and comes back to it.
    for (const Pipeline& pipeline : {Pipeline{Pipeline::Kind::zero_bubble}, Pipeline{Pipeline::Kind::interleaved, 2}}) {
      CAPTURE(to_string(pipeline));
      CompileOptions o = options({2, 2}, 1, 1);
      o.pipeline = pipeline;
      o.stage_of_unit = pipeline.chunks == 1 ? std::vector<std::int32_t>{0, 0, 1, 1, 1, 1}
                                             : std::vector<std::int32_t>{0, 0, 1, 2, 2, 3};
      CHECK(numbers_of(compiled(layers_in({"u", "v", "u", "w", "x", "y", "z"}, skips), o)) == expected);
    }
  }
  CHECK(parts >= 20);
  CHECK(refused >= 10);
  CHECK(compile(layers_in({"out", "u", "v", "u", "out"}, false), options({2}, 1, 3))
            .status()
            .message()
            .find("data of the first comes to the second: with ZeRO 3") != std::string::npos);
}
