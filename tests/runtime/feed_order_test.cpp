// Feeds of several places, and of several programs that train: which microbatch goes out when, and for whom.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <span>
#include <tuple>

#include "tests/runtime/two_nets.h"

using namespace mlp;

TEST_CASE("two programs that train have each a feed, whose microbatches each place takes") {
  Graph g(ops());
  for (const std::string name : {"one", "two"}) {
    g.program(name, {name == "one" ? 2 : 5, 1});
    g.unit("all");
    const Value x = g.feed("x." + name, {DType::f32, {1, 4}});
    const Value w = g.param(name + ".w", {4, 4}, Init::normal(0.1f));
    g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], x})[0], {});
  }
  for (const std::int64_t dp : {1, 2}) {
    CompileOptions o;
    o.stages = stage_meshes({dp});
    const Plan p = compiled(g, o);
    std::map<std::string, int> asked;
    SessionOptions session;
    session.steps = 3;
    session.feed = [&](const std::string& feed, std::int64_t, std::int32_t microbatch, const Report*) {
      asked[feed] += 1 + microbatch;
      const std::vector<float> x(4, 0.5f);
      const auto bytes = std::as_bytes(std::span(x));
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {.seed = 2});
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    CHECK(asked == std::map<std::string, int>{{"x.one", 3 * 3}, {"x.two", 3 * 15}});
  }
}

TEST_CASE(
    "feeds of two programs that train wait each for the reports of its own, and have each the losses of it alone") {
  const auto build = [](const std::vector<std::string>& names) {
    Graph g(ops());
    for (const std::string& name : names) {
      g.program(name, {name == "one" ? 3 : 5, 1});
      g.unit("all");
      const Value x = g.feed("x." + name, {DType::f32, {1, 4}}, "seen");
      const Value w = g.param(name + ".w", {4, 4}, Init::normal(0.1f));
      const Value loss = g.op("mse_loss", {g.op("linear", {x, w})[0], x})[0];
      g.report("seen", loss);
      g.minimize(loss, {});
    }
    return g;
  };
  const auto told = [&](const std::vector<std::string>& names, std::uint64_t seed, std::int64_t dp = 1) {
    CompileOptions o = one_place();
    o.stages = stage_meshes({dp});
    const Plan p = compiled(build(names), o);
    std::map<std::string, std::vector<double>> losses;
    std::set<std::tuple<std::string, std::int64_t, std::int32_t>> asked;
    SessionOptions session;
    session.steps = 3;
    session.feed = [&](const std::string& feed, std::int64_t step, std::int32_t microbatch, const Report* last) {
      CHECK(asked.insert({feed, step, microbatch}).second);
      CHECK((last != nullptr) == (microbatch > 0));
      if (last != nullptr) CHECK(p.programs[last->program].name == feed.substr(2));
      if (last != nullptr) CHECK(last->microbatch == microbatch - 1);
      const std::vector<float> x(4, static_cast<float>(feed.size() + 10 * step + microbatch) / 50);
      const auto bytes = std::as_bytes(std::span(x));
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    session.on_step = [&](const StepResult& step) {
      losses[step.program].push_back(step.loss);
      for (const ProgramResult& other : step.others) losses[other.program].push_back(other.loss);
    };
    const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {.seed = seed});
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    std::size_t each = 0;
    for (const std::string& name : names) each += name == "one" ? 3 : 5;
    CHECK(asked.size() == 3 * each);
    return losses;
  };
  auto alone = told({"one"}, 0);
  alone.merge(told({"two"}, 0));
  for (const std::uint64_t seed : {0, 6})
    for (const std::int64_t dp : {1, 2}) CHECK(told({"one", "two"}, seed, dp) == alone);
}

TEST_CASE(
    "a feed that waits for a report of an actor that does not wait for the feed goes on, whichever place is ahead") {
  class Tells final : public actors::UserActor {
   public:
    Status act(actors::UserCall& call) override {
      call.report("told", {static_cast<double>(call.microbatch)});
      return {};
    }
  };
  class Sink final : public actors::UserActor {
   public:
    Status act(actors::UserCall&) override { return {}; }
  };
  actors::UserActorSet set = actor_set();
  set["tells"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Tells>());
  };
  set["sink"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Sink>());
  };
  for (const std::int64_t dp : {1, 2, 3})
    for (const std::int64_t at_once : {1, 3}) {
      CAPTURE(dp);
      CAPTURE(at_once);
      Graph g(ops());
      g.program("train", {6, 1});
      g.unit("all");
      const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 4}}}}, {{"stream", std::string("x")}})[0];
      g.actor("tells", "tells", {x}, {}, {{"reports", std::string("told")}});
      g.actor("sink", "sink", {g.feed("f", {DType::f32, {1, 4}}, "told", at_once)}, {});
      const Value w = g.param("w", {4, 4}, Init::normal(0.1f));
      g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], x})[0], {});
      CompileOptions o;
      o.stages = stage_meshes({dp});
      const Plan p = compiled(g, o);
      for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5}) {
        std::vector<std::pair<std::int32_t, std::int32_t>> fed;  // and what each has waited for
        SessionOptions session;
        session.steps = 2;
        session.feed = [&](const std::string&, std::int64_t, std::int32_t microbatch, const Report* last) {
          fed.emplace_back(microbatch, last != nullptr ? last->microbatch : -1);
          return std::vector<std::byte>(16);
        };
        REQUIRE(simulate_job(p, ops(), set, session, {.seed = seed}).job.status.ok());
        std::vector<std::pair<std::int32_t, std::int32_t>> expected;
        for (int step = 0; step < 2; ++step)
          for (std::int32_t m = 0; m < 6; ++m) expected.emplace_back(m, m < at_once ? -1 : m - 1);
        CHECK(fed == expected);
      }
    }
}
