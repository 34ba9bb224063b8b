// Layouts on a model axis: ops split over places, boxings where layouts change.
#include <doctest/doctest.h>

#include "placement/collective.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// x (4, 24) -> column parallel linear -> relu -> row parallel linear: P -> report (B). Nothing is trained.
Graph column_row(const kernels::OpSet& ops, std::int64_t rows) {
  Graph g(ops);
  g.program("run", {2, rows});
  g.unit("all");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {rows, 24}}}}, {{"stream", std::string("x")}})[0];
  const Value up = g.param("up", {48, 24}, Init::normal(0.2f)), down = g.param("down", {24, 48}, Init::normal(0.2f));
  g.hint(up, {Sbp::S(0), Sbp::B()});
  g.hint(down, {Sbp::S(1), Sbp::B()});
  x = g.op("relu", {g.op("linear", {x, up})[0]})[0];
  g.report("y", g.op("linear", {x, down})[0]);
  return g;
}

std::vector<Collective> boxings(const Plan& p) {
  std::vector<Collective> out;
  for (const auto& x : p.exchanges) out.push_back(x.collective);
  return out;
}

}  // namespace

TEST_CASE("P -> B on a model axis is an all-reduce of two places, and a reduce-scatter and an all-gather of more") {
  const auto ops = kernels::standard_ops();
  std::vector<double> alone;
  for (std::int64_t tp : {1, 2, 3, 4}) {
    CAPTURE(tp);
    CompileOptions o;
    o.stages = stage_meshes({1}, tp);
    const auto p = compile(column_row(ops, 4), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    if (tp == 1) CHECK(boxings(*p).empty());
    if (tp == 2) CHECK(boxings(*p) == std::vector<Collective>{Collective::all_reduce});
    if (tp > 2) CHECK(boxings(*p) == std::vector<Collective>{Collective::reduce_scatter, Collective::all_gather});
    for (const auto& x : p->exchanges) CHECK(x.bytes == (tp == 2 ? 2 : 1) * (tp - 1) * 4 * 24 * 4);
    const auto verified = verify(*p);
    CHECK_MESSAGE(verified.ok(), verified.message());
    std::vector<double> values;
    SessionOptions session;
    session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
      for (const auto& r : reports) values.insert(values.end(), r.values.begin(), r.values.end());
    };
    const auto run = run_simulated(*p, ops, actor_set(), session, {});
    REQUIRE_MESSAGE(run.ok(), run.status().message());
    REQUIRE(values.size() == 2 * 4 * 24);
    if (tp == 1) alone = values;
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(alone[i]).epsilon(1e-5));
  }
}

TEST_CASE(
    "a boxing begins at the copy of the value from which fewest bytes move, not always where the value was made") {
  const auto ops = kernels::standard_ops();
  for (std::int64_t tp : {2, 4}) {
    CAPTURE(tp);
    Graph g(ops);
    g.program("run", {2, 4});
    g.unit("all");
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {4, 24}}}})[0];
    const Value up = g.param("up", {48, 24}, Init::normal(0.2f));
    g.hint(up, {Sbp::S(0), Sbp::B()});
    const Value y = g.op("linear", {x, up})[0];  // S(1)
    g.actor("data", "whole", {y}, {});
    g.actor("data", "rows", {y}, {}, {}, {NdSbp{Sbp::S(0), Sbp::B()}});
    const auto p = compile(g, {.stages = stage_meshes({1}, tp)});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    CHECK(boxings(*p) == std::vector<Collective>{Collective::all_gather, Collective::slice});
    std::int64_t bytes = 0;
    for (const auto& e : p->exchanges) bytes += e.bytes;
    CHECK(bytes == (tp - 1) * 4 * 48 * 4);  // of the all-gather; a place's rows lie in the whole that it has
  }
}

TEST_CASE(
    "a layout that is required is taken whatever it costs, a hint is not; where no row has it, each row is named") {
  const auto kernel_ops = kernels::standard_ops();
  enum class Asked { required, hinted };
  // y = x w^T, whose parameter would be divided: fewest bytes.
  const auto graph = [&](const Sbp& layout, Asked asked, std::optional<Sbp> of_param = {}) {
    Graph g(kernel_ops);
    g.program("run", {2, 4});
    g.unit("all");
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {4, 24}}}}, {{"stream", std::string("x")}})[0];
    const Value w = g.param("w", {48, 24}, Init::normal(0.2f));
    const Value y = g.op("linear", {x, w})[0];
    if (asked == Asked::required) g.require(y, {layout, Sbp::B()});
    else g.hint(y, {layout, Sbp::B()});
    if (of_param) g.require(w, {*of_param, Sbp::B()});
    g.report("y", y);
    return g;
  };
  const auto values_of = [&](const Plan& plan) {
    std::vector<double> values;
    SessionOptions session;
    session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
      for (const auto& r : reports) values.insert(values.end(), r.values.begin(), r.values.end());
    };
    const auto run = run_simulated(plan, kernel_ops, actor_set(), session, {});
    REQUIRE_MESSAGE(run.ok(), run.status().message());
    return values;
  };
  const auto alone = values_of(*compile(graph(Sbp::B(), Asked::required), {.stages = stage_meshes({1})}));
  using Kinds = std::vector<Collective>;
  const std::pair<Sbp, Kinds> layouts[] = {
      {Sbp::S(1), {Collective::all_gather}}, {Sbp::P(), {Collective::slice, Collective::all_reduce}}, {Sbp::B(), {}}};
  for (const auto& [layout, expected] : layouts) {
    CAPTURE(to_string(layout));
    const auto p = compile(graph(layout, Asked::required), {.stages = stage_meshes({1}, 2)});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    CHECK(boxings(*p) == expected);
    const auto values = values_of(*p);
    REQUIRE(values.size() == alone.size());
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(alone[i]).epsilon(1e-5));
  }
  const auto hinted = compile(graph(Sbp::B(), Asked::hinted), {.stages = stage_meshes({1}, 2)});
  REQUIRE_MESSAGE(hinted.ok(), hinted.status().message());
  CHECK(!boxings(*hinted).empty());
  const auto why_not = [](const Graph& g) {
    const auto p = compile(g, {.stages = stage_meshes({1}, 2)});
    REQUIRE(!p.ok());
    return p.status().message();
  };
  const std::string says = why_not(graph(Sbp::S(0), Asked::required));
  for (const char* text :
       {"op 'all.linear' (linear): no row of its SBP table leaves 'all.linear' in S(0) on axis 'tp', as is required "
        "(Graph::require):",
        "\n  (B, S(0)) -> (S(1))\n", "\n  (S(1), S(1)) -> (P)\n", "\n  (B, B) -> (B)",
        "\n  (S(0), B) -> (S(0)): divides samples"})
    CHECK_MESSAGE(says.find(text) != std::string::npos, says);
  CHECK(why_not(graph(Sbp::P(), Asked::required, Sbp::S(0))).find("no row of its SBP table fits the parameters") !=
        std::string::npos);
}

TEST_CASE("two readers of parts of a whole value each slice it, in whatever order they read") {
  for (const std::int64_t tp : {2, 4})
    for (const bool rows_first : {true, false}) {
      CAPTURE(tp);
      CAPTURE(rows_first);
      Graph g(ops());
      g.program("run", {2, 4});
      g.unit("all");
      const Value y = g.actor("data", "y", {}, {{"y", {DType::f32, {4, 48}}}})[0];
      for (const bool rows : {rows_first, !rows_first})
        g.actor("data", rows ? "rows" : "columns", {y}, {}, {}, {NdSbp{Sbp::S(rows ? 0 : 1), Sbp::B()}});
      const auto p = compile(g, {.stages = stage_meshes({1}, tp)});
      REQUIRE_MESSAGE(p.ok(), p.status().message());
      // One exchange slices both parts at once.
      CHECK(boxings(*p) == std::vector<Collective>{Collective::slice});
      REQUIRE(p->exchanges.size() == 1);
      CHECK(p->exchanges[0].moves.size() == 2);
      CHECK(p->exchanges[0].bytes == 0);
    }
}
