// The search for layouts against all that there are, and what is said about it.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "kernels/ops.h"
#include "runtime/compile/assign_units.h"
#include "runtime/compile/compile.h"
#include "runtime/show/layout_choice.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

/// A few linears, sums and norms with random widths; some values are read twice. All are of one unit, or what comes
/// behind the first linear of another one.
Graph random_graph(const kernels::OpSet& ops, std::mt19937& rng, bool two_units = false) {
  Graph g(ops);
  g.program("train", {4, 1});
  g.unit("all");
  auto draw = [&](int n) { return static_cast<std::int64_t>(rng() % static_cast<unsigned>(n)); };
  const std::int64_t width = 64 << draw(4), rows = 16 << draw(6);
  Value x = g.actor("data", "input", {}, {{"x", {DType::f32, {1, rows, width}}, std::nullopt}})[0];
  const Value y = g.actor("data", "target", {}, {{"y", {DType::f32, {1, rows, width}}, std::nullopt}})[0];
  const auto blocks = 1 + draw(2);
  for (int i = 0; i < blocks; ++i) {
    const std::string n = std::to_string(i);
    const std::int64_t hidden = 64 << draw(5);
    const Value before = x;
    if (draw(2)) x = g.op("rmsnorm", {x, g.param("n" + n, {width}, Init::constant(1), false)}, {{"eps", 1e-5}})[0];
    x = g.op("linear", {x, g.param("a" + n, {hidden, width}, Init::normal(0.1f))})[0];
    if (two_units && i == 0) g.unit("rest");
    x = g.op("linear", {x, g.param("b" + n, {width, hidden}, Init::normal(0.1f))})[0];
    if (draw(2)) x = g.op("add", {x, before})[0];
  }
  g.minimize(g.op("mse_loss", {x, y}, {{"scale", 1.0}})[0], {});
  return g;
}

/// Layers of one kind, between a first and a last op of their own; one parameter may be read by both of these (tied).
/// Alike ones differ by name only; others by a number that no layout depends on.
Graph layers(const kernels::OpSet& ops, int count, bool alike, unsigned kind) {
  Graph g(ops);
  g.program("train", {4, 1});
  g.unit("first");
  const std::int64_t width = 64 << (kind % 3), hidden = 128 << (kind % 5), rows = 32 << (kind % 4);
  Value x = g.actor("data", "input", {}, {{"x", {DType::f32, {1, rows, width}}, std::nullopt}})[0];
  const Value y = g.actor("data", "target", {}, {{"y", {DType::f32, {1, rows, width}}, std::nullopt}})[0];
  const Value tied = g.param("tied", {width, width}, Init::normal(0.1f)), first = x;
  x = g.op("linear", {x, tied})[0];
  for (int i = 0; i < count; ++i) {
    const std::string n = "layers." + std::to_string(i);
    g.unit(n);
    const Value before = x;
    x = g.op("rmsnorm", {x, g.param(n + ".norm", {width}, Init::constant(1), false)},
             {{"eps", alike ? 1e-5 : 1e-5 * (i + 1)}})[0];
    x = g.op("linear", {x, g.param(n + ".up", {hidden, width}, Init::normal(0.1f))})[0];
    x = g.op("linear", {x, g.param(n + ".down", {width, hidden}, Init::normal(0.1f))})[0];
    x = g.op("add", {x, kind & 1 ? first : before})[0];  // from far back: alive in all layers
    x = g.op("dropout", {x}, {{"p", 0.1}, {"rng", n}})[0];
  }
  g.unit("last");
  if (kind & 2) x = g.op("linear", {x, tied})[0];
  g.minimize(g.op("mse_loss", {x, y}, {{"scale", 1.0}})[0], {});
  return g;
}

CompileOptions on_tp(std::int64_t tp) {
  CompileOptions o;
  o.stages = stage_meshes({1}, tp);
  return o;
}

}  // namespace

TEST_CASE("the layout found is the cheapest of all: random graphs against every combination of rows") {
  const auto ops = kernels::standard_ops();
  std::mt19937 rng(7);
  std::int64_t tried = 0, graphs = 0;
  for (int k = 0; k < 60; ++k) {
    CAPTURE(k);
    const Graph g = random_graph(ops, rng);
    REQUIRE_MESSAGE(g.status().ok(), g.status().message());
    auto staged = assign_units(g, on_tp(2 << (k % 3)));
    REQUIRE_MESSAGE(staged.ok(), staged.status().message());
    // Slow and fast links: what is cheapest depends on them.
    staged->layout_costs.intra_node = {k % 2 ? 1e-7 : 1e-4, k % 5 ? 4e9 : 4e7};
    const auto best = deduce(g, *staged);
    REQUIRE_MESSAGE(best.ok(), best.status().message());
    std::vector<std::pair<std::int32_t, std::vector<kernels::Signature>>> tables;
    std::size_t combinations = 1;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(g.nodes().size()); ++i)
      if (const Node& n = g.nodes()[i]; n.kind == Node::Kind::op && !n.backward) {
        tables.push_back({i, model_rows(g, n)});
        combinations *= tables.back().second.size();
      }
    if (combinations > 4000) continue;
    ++graphs;
    LayoutCost cheapest{1e300, 1e300};
    for (std::size_t c = 0; c < combinations; ++c) {
      std::map<std::int32_t, kernels::Signature> only;
      std::size_t rest = c;
      for (const auto& [node, rows] : tables) {
        only[node] = rows[rest % rows.size()];
        rest /= rows.size();
      }
      const auto one = deduce(g, *staged, [&](std::int32_t node, std::size_t, const kernels::Signature& row) {
        return row == only.at(node);
      });
      if (one.ok() && one->cost < cheapest) cheapest = one->cost;
      ++tried;
    }
    CHECK(best->cost.param_bytes == cheapest.param_bytes);
    CHECK(best->cost.seconds == doctest::Approx(cheapest.seconds).epsilon(1e-12));
  }
  MESSAGE(graphs << " graphs, " << tried << " combinations");
  CHECK(graphs >= 25);
}

TEST_CASE(
    "the search charges the hand-overs to and from each exchange of a layout, and between the two of an all-reduce of "
    "more than two places") {
  const auto ops = kernels::standard_ops();
  std::mt19937 rng(9);
  int reduced = 0;  // by all-reduces alone
  for (int k = 0; k < 10; ++k) {
    CAPTURE(k);
    const Graph g = random_graph(ops, rng);
    std::map<std::int64_t, double> handovers;  // by tp, of the layout that tp=2 has
    std::vector<std::vector<kernels::Signature>> rows;
    for (const std::int64_t tp : {2, 4}) {
      auto staged = assign_units(g, on_tp(tp));
      REQUIRE_MESSAGE(staged.ok(), staged.status().message());
      const auto cost_s = [&](double handover_s) {
        staged->layout_costs.handover_s = handover_s;
        const auto found = deduce(g, *staged, [&](std::int32_t node, std::size_t axis, const kernels::Signature& row) {
          return rows.empty() || row == rows[node][axis];
        });
        REQUIRE_MESSAGE(found.ok(), found.status().message());
        if (rows.empty()) rows = found->signatures;
        return found->cost.seconds;
      };
      const double without = cost_s(0);
      handovers[tp] = cost_s(1) - without;
      // One of a parameter is for all four microbatches of a step.
      CHECK(handovers[tp] * 4 == doctest::Approx(std::round(handovers[tp] * 4)).epsilon(1e-9));
    }
    CHECK(handovers[2] >= 2);  // of the sum that the loss reads
    CHECK(handovers[4] >= handovers[2]);
    CHECK(handovers[4] <= 1.5 * handovers[2] + 1e-9);
    reduced += handovers[4] == doctest::Approx(1.5 * handovers[2]).epsilon(1e-9);
  }
  CHECK(reduced >= 3);
}

TEST_CASE("layers that repeat one another are searched once, with the answer of the whole search") {
  const auto ops = kernels::standard_ops();
  for (unsigned kind = 0; kind < 32; ++kind) {
    std::int64_t searched = 0;  // of twelve layers
    for (const int count : {1, 2, 3, 12, 24}) {
      CAPTURE(kind);
      CAPTURE(count);
      const Graph same = layers(ops, count, true, kind), different = layers(ops, count, false, kind);
      REQUIRE_MESSAGE(same.status().ok(), same.status().message());
      const std::int64_t tps[] = {2, 4, 8, 5};
      auto staged = assign_units(same, on_tp(tps[kind % 4]));
      REQUIRE_MESSAGE(staged.ok(), staged.status().message());
      staged->layout_costs.intra_node = {kind % 2 ? 1e-7 : 1e-4, kind % 5 ? 4e9 : 4e7};
      const auto once = deduce(same, *staged), whole = deduce(different, *staged);
      REQUIRE_MESSAGE(once.ok(), once.status().message());
      REQUIRE_MESSAGE(whole.ok(), whole.status().message());
      CHECK(once->cost.param_bytes == whole->cost.param_bytes);
      CHECK(once->cost.seconds == doctest::Approx(whole->cost.seconds).epsilon(1e-12));
      if (count == 12) searched = once->searched;
      if (count == 24) CHECK(once->searched == searched);
      CHECK(once->searched <= whole->searched);
      // Of equally cheap layouts either may be found: the rows themselves cost what was said.
      const auto rows = deduce(different, *staged,
                               [&](std::int32_t node, std::size_t axis, const kernels::Signature& row) {
                                 return row == once->signatures[node][axis];
                               });
      REQUIRE_MESSAGE(rows.ok(), rows.status().message());
      CHECK(rows->cost.param_bytes == whole->cost.param_bytes);
      CHECK(rows->cost.seconds == doctest::Approx(whole->cost.seconds).epsilon(1e-12));
    }
  }
}

TEST_CASE("what another row would have cost is never less, and the text names the next best") {
  const auto ops = kernels::standard_ops();
  std::mt19937 rng(8);
  for (int k = 0; k < 20; ++k) {
    const Graph g = random_graph(ops, rng);
    const auto choices = layout_choices(g, on_tp(4));
    REQUIRE_MESSAGE(choices.ok(), choices.status().message());
    REQUIRE_FALSE(choices->choices.empty());
    for (const auto& c : choices->choices) {
      CAPTURE(c.ops);
      if (!c.instead) continue;
      CHECK_FALSE(*c.instead == c.chosen);
      CHECK_FALSE(c.more < LayoutCost{0, -1e-15});
    }
    const std::string text = layout_text(*choices);
    CHECK(text.find("the next best takes ") != std::string::npos);
    CHECK(text.find("linear a0") != std::string::npos);
  }
}

TEST_CASE(
    "NU-2 (topologies): the layouts found do not depend on where dp and pp put the ranks, whatever links they then "
    "span; those of an "
    "axis that is wider than a node are for the links between nodes") {
  const auto ops = kernels::standard_ops();
  int changed = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 rng(seed);
    const Graph g = random_graph(ops, rng, true);
    REQUIRE_MESSAGE(g.status().ok(), g.status().message());
    CAPTURE(seed);
    const auto found = [&](const std::vector<std::int64_t>& dp, bool all_dear, std::int32_t per_node = 6) {
      CompileOptions o;
      o.stages = stage_meshes(dp, 4);
      o.costs.places_per_node =
          per_node;  // of 6: ranks 0 to 3 lie within a node, 4 to 7 on two: another replica, or another stage
      o.costs.inter_node = {1e-3, 1e7};
      if (all_dear) o.costs.intra_node = o.costs.inter_node;
      auto staged = assign_units(g, o);
      REQUIRE_MESSAGE(staged.ok(), staged.status().message());
      const auto deduced = deduce(g, *staged);
      REQUIRE_MESSAGE(deduced.ok(), deduced.status().message());
      std::vector<std::vector<kernels::Signature>> rows;
      for (const auto& node : deduced->signatures)
        rows.push_back({node.begin(), node.begin() + std::min<std::ptrdiff_t>(1, std::ssize(node))});
      return rows;
    };
    const auto one = found({1}, false);
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2}, {3}, {1, 1}, {2, 1}, {1, 3}}) {
      INFO(dp.size(), " stages, the first dp ", dp.front());
      CHECK(found(dp, false) == one);
    }
    const auto dear = found({1}, true);
    CHECK(found({1}, false, 3) == dear);  // an axis of 4 does not fit on a node of 3
    changed += dear != one;
  }
  CHECK(changed > 5);  // links that dear, had they been asked for, change the choice
}

TEST_CASE("where no mesh has a model axis there is no layout to choose") {
  const auto ops = kernels::standard_ops();
  std::mt19937 rng(9);
  const auto choices = layout_choices(random_graph(ops, rng), on_tp(1));
  REQUIRE(choices.ok());
  CHECK(choices->choices.empty());
  CHECK(layout_text(*choices).empty());
}

TEST_CASE("where a mesh has a model axis, too, a node that reads a gradient is refused with the parameter's name") {
  const auto ops = kernels::standard_ops();
  for (const std::string reader : {"report", "op", "actor"}) {
    CAPTURE(reader);
    Graph g(ops);
    g.program("train", {4, 2});
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 8}}, std::nullopt}})[0];
    g.minimize(g.op("mse_loss", {g.op("linear", {x, g.param("w", {8, 8}, Init::normal(0.1f))})[0], x}, {})[0], {});
    REQUIRE_MESSAGE(g.status().ok(), g.status().message());
    const Value gradient = g.grads()[0].uses[0];
    if (reader == "report") g.report("read", gradient);
    if (reader == "op") g.op("relu", {gradient}, {}, "read");
    if (reader == "actor") g.actor("data", "read", {gradient}, {});
    REQUIRE_MESSAGE(g.status().ok(), g.status().message());
    const auto p = compile(g, {.stages = stage_meshes({2}, 2)});
    REQUIRE(!p.ok());
    CHECK_MESSAGE(p.status().message().find("gradient of parameter 'w'") != std::string::npos, p.status().message());
  }
}

TEST_CASE("bytes of parameters are those of a place of the stage that has them, where stages differ in tp") {
  const kernels::OpSet ops = kernels::standard_ops();
  Graph g(ops);
  g.program("train", {4, 1});
  g.unit("wide");
  Value x = g.actor("data", "input", {}, {{"x", {DType::f32, {1, 24, 48}}, std::nullopt}})[0];
  const Value y = g.actor("data", "target", {}, {{"y", {DType::f32, {1, 24, 48}}, std::nullopt}})[0];
  x = g.op("linear", {x, g.param("a", {96, 48}, Init::normal(0.1f))})[0];
  g.unit("narrow");
  x = g.op("linear", {x, g.param("b", {48, 96}, Init::normal(0.1f))})[0];
  g.minimize(g.op("mse_loss", {x, y}, {{"scale", 1.0}})[0], {});
  CompileOptions o;
  o.stages = {Mesh::dense({{"tp", 3}, {"dp", 1}}), Mesh::dense({{"tp", 2}, {"dp", 1}}, 3)};
  o.stage_of_unit = {0, 1};
  const auto staged = assign_units(g, o);
  REQUIRE(staged.ok());
  const auto best = deduce(g, *staged);
  REQUIRE(best.ok());
  constexpr double bytes = 96 * 48 * 4;  // of each
  CHECK(best->cost.param_bytes == bytes / 3 + bytes / 2);
}
