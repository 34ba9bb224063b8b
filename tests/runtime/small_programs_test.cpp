// The smallest programs that a user may write, with no option set: they run.
#include <doctest/doctest.h>

#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

Expected<SimRun> run_once(const Graph& g) {
  TROUPE_ASSIGN(const Plan p, compile(g, {}));  // no mesh: one place
  TROUPE_TRY(verify(p).in("verify"));
  CHECK(p.workers() == 1);
  CHECK(p.roles[0].units == std::vector<std::string>{"main"});
  return run_simulated(p, ops(), actor_set(), {});
}

Value random_source(Graph& g, std::int64_t rows) {
  return g.actor("data", "x", {}, {{"x", {DType::f32, {rows, 6}}}}, {{"stream", std::string("x")}})[0];
}

}  // namespace

TEST_CASE("a program of one actor, without units, meshes or options, runs") {
  Graph g(ops());
  g.program("main", {});
  random_source(g, 1);
  const auto ran = run_once(g);
  CHECK_MESSAGE(ran.ok(), ran.status().message());
}

TEST_CASE("one microbatch of one sample, one op and one parameter, without units, meshes or options, is trained on") {
  Graph g(ops());
  g.program("main", {});
  const Value x = random_source(g, 1), w = g.param("w", {6, 6}, Init::normal(0.1f));
  g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], x}, {{"scale", 1.0}})[0], {});
  REQUIRE_MESSAGE(g.status().ok(), g.status().message());
  const auto ran = run_once(g);
  REQUIRE_MESSAGE(ran.ok(), ran.status().message());
  REQUIRE(ran->steps.size() == 1);
  CHECK(ran->steps[0].loss > 0);
}

TEST_CASE("what cannot be guessed is asked for by the call or the option that says it") {
  const auto refusal = [](const Graph& g, const CompileOptions& o) {
    const auto p = compile(g, o);
    return p.ok() ? "accepted" : p.status().message();
  };
  const auto says = [](const std::string& message, const std::string& words) {
    CHECK_MESSAGE(message.find(words) != std::string::npos, message);
  };
  Graph none(ops());
  says(refusal(none, {}), "the graph has no program: name one with program(...) before the first op");
  Graph g(ops());
  g.program("main", {});
  const Value x = random_source(g, 1), w = g.param("w", {6, 6}, Init::normal(0.1f));
  g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], x}, {{"scale", 1.0}})[0], {});
  says(refusal(g, {.stages = stage_meshes({2})}),
       "dp=2 on stage 0 is more than the 1 microbatches of a step: use dp=1 or less, or more microbatches");
  says(refusal(g, {.stages = stage_meshes({1, 1})}),
       "2 pipeline stages need at least as many units (layers), and there are 1: use pp=1 or less");
}
