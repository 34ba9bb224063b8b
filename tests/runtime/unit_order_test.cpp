// The order in which a graph names its units, and the stages on which they are put, change no number.
#include <doctest/doctest.h>

#include <numeric>

#include "runtime/verify/verify.h"
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
