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
