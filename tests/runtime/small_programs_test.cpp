// The smallest programs that a user may write, with no option set: they run.
#include <doctest/doctest.h>

#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Notes step and microbatch of each act.
class NotingActor final : public actors::UserActor {
 public:
  using Acts = std::vector<std::pair<std::int64_t, std::int32_t>>;
  explicit NotingActor(Acts& acts) : acts_(acts) {}
  Status act(actors::UserCall& call) override {
    acts_.push_back({call.step, call.microbatch});
    return {};
  }

 private:
  Acts& acts_;
};

Expected<SimRun> run_once(const Graph& g, const actors::UserActorSet& set = actor_set()) {
  TROUPE_ASSIGN(const Plan p, compile(g, {}));  // no mesh: one place
  TROUPE_TRY(verify(p).in("verify"));
  CHECK(p.workers() == 1);
  CHECK(p.roles[0].units == std::vector<std::string>{"main"});
  return run_simulated(p, ops(), set, {});
}

Value random_source(Graph& g, std::int64_t rows) {
  return g.actor("data", "x", {}, {{"x", {DType::f32, {rows, 6}}}}, {{"stream", std::string("x")}})[0];
}

}  // namespace

TEST_CASE("a program of one actor, without units, meshes or options, runs: the actor acts once, in step 0") {
  NotingActor::Acts acts;
  actors::UserActorSet set;
  set["noting"] = [&](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<NotingActor>(acts));
  };
  Graph g(ops());
  g.program("main", {});
  g.actor("noting", "x", {}, {{"x", {DType::f32, {1, 6}}}});
  REQUIRE_MESSAGE(g.status().ok(), g.status().message());
  const auto ran = run_once(g, set);
  REQUIRE_MESSAGE(ran.ok(), ran.status().message());
  CHECK(ran->steps.empty());  // it does not train
  REQUIRE(acts.size() == 1);
  CHECK(acts[0].first == 0);
  CHECK(acts[0].second == 0);
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
