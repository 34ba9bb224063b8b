// The parameters that a run's result has (SessionOptions::parameters).
#include <doctest/doctest.h>

#include <cstring>
#include <map>

#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

SimOutcome trained(const Plan& plan, std::vector<std::string> wanted, std::int64_t steps = 3) {
  SessionOptions session;
  session.steps = steps;
  session.loss_divisor = 16;
  session.lr = [](std::int64_t) { return 1e-2; };
  session.parameters = std::move(wanted);
  return simulate_job(plan, ops(), actor_set(), std::move(session), {});
}

Expected<Plan> planned(const std::vector<std::int64_t>& dp, std::int64_t tp, std::int32_t zero, bool keeps = false) {
  CompileOptions o;
  o.stages = stage_meshes(dp, tp);
  o.zero = zero;
  o.seed = 7;
  o.keeps_version = keeps;
  return compile(graph(ops(), {}), o);
}

/// What AdamW makes of its first step, in double: w - lr (sign(g) + decay w), where |g| is far above eps; so each
/// element has moved by lr, up or down.
void check_first_step(const FinalParameter& before, const FinalParameter& after, double lr, double decay) {
  REQUIRE(before.values.size() == after.values.size());
  int up = 0, down = 0, none = 0;
  for (std::size_t i = 0; i < before.values.size(); ++i) {
    const double moved = (static_cast<double>(after.values[i]) - before.values[i] * (1 - lr * decay)) / lr;
    if (std::abs(moved - 1) < 1e-2) ++up;
    else if (std::abs(moved + 1) < 1e-2) ++down;
    else ++none;
  }
  CHECK(up > std::ssize(before.values) / 4);
  CHECK(down > std::ssize(before.values) / 4);
  CHECK(none < std::ssize(before.values) / 10);
}

}  // namespace

TEST_CASE("a run's result has the parameters that it was asked for, whole, with the same bits on any mesh") {
  const std::vector<std::string> names = {"layer1.up", "layer2.down"};
  const auto one = planned({1}, 1, 0);
  REQUIRE(one.ok());
  const SimOutcome reference = trained(*one, names);
  REQUIRE_MESSAGE(reference.job.status.ok(), reference.job.status.message());
  REQUIRE(reference.job.parameters.size() == 2);
  CHECK(reference.job.parameters.at("layer1.up").shape == Shape{40, 24});
  CHECK(reference.job.parameters.at("layer2.down").shape == Shape{24, 40});
  CHECK(reference.job.parameters.at("layer2.down").values.size() == 24 * 40);
  struct Mesh_ {
    std::vector<std::int64_t> dp;
    std::int64_t tp;
    std::int32_t zero;
    bool keeps;
  };
  for (const auto& [dp, tp, zero, keeps] : std::vector<Mesh_>{
           {{3}, 1, 0, false}, {{3}, 1, 1, true}, {{2, 1}, 1, 3, false}, {{2}, 1, 3, false}, {{1, 2}, 1, 2, false}}) {
    const auto plan = planned(dp, tp, zero, keeps);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const SimOutcome out = trained(*plan, names);
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    CAPTURE(zero);
    CAPTURE(plan->workers());
    REQUIRE(out.job.parameters.size() == 2);
    for (const auto& [name, want] : reference.job.parameters) {
      const FinalParameter& have = out.job.parameters.at(name);
      CHECK(have.shape == want.shape);
      CHECK(have.values == want.values);
    }
  }
  CHECK(trained(*one, {}).job.parameters.empty());
}

TEST_CASE(
    "a parameter that tp divides comes back whole: its initial values on any mesh, and what a step makes of them") {
  const auto one = planned({1}, 1, 0), divided = planned({1}, 2, 0);
  REQUIRE(one.ok());
  REQUIRE(divided.ok());
  bool is_divided = false;
  for (const auto& p : divided->params)
    for (const Sbp& s : divided->tensors[static_cast<std::size_t>(p.tensor)].sbp) is_divided |= s.is_split();
  REQUIRE(is_divided);
  std::vector<std::string> names;
  for (const auto& p : one->params) names.push_back(p.name);
  const auto begin = trained(*one, names, 0).job, begin_divided = trained(*divided, names, 0).job;
  REQUIRE(begin.status.ok());
  REQUIRE(begin.parameters.size() == names.size());
  REQUIRE(begin_divided.parameters.size() == names.size());
  const auto after = trained(*divided, names, 1).job;
  for (const auto& name : names) {
    CAPTURE(name);
    CHECK(begin.parameters.at(name).values == begin_divided.parameters.at(name).values);
    check_first_step(begin.parameters.at(name), after.parameters.at(name), 1e-2, 0.1);
  }
}

TEST_CASE("parameters that a plan does not have, or that a result has no room for, are refused by name") {
  const auto plan = planned({1}, 1, 0);
  REQUIRE(plan.ok());
  const auto said = [&](const std::vector<std::string>& names) {
    return find_parameters(*plan, names).status().message();
  };
  CHECK(said({"layer0.up", "layer9.up"}) ==
        "SessionOptions::parameters names 'layer9.up', which no parameter of the plan is called");
  CHECK(said({"layer0.up", "layer0.up"}) == "SessionOptions::parameters names 'layer0.up', twice");
  CHECK(said({"layer0.up", "layer0.down"}).empty());
  Plan still = *plan;
  still.trains = false;
  CHECK(find_parameters(still, {"layer0.up"}).status().message().find("the plan trains nothing") != std::string::npos);
  CHECK(find_parameters(still, {}).ok());
  Plan large = *plan;
  large.tensors[static_cast<std::size_t>(large.params[0].tensor)].shape = {final_parameters_bytes_max / 4, 1};
  const std::string name = large.params[0].name;
  CHECK(find_parameters(large, {name}).ok());
  CHECK(find_parameters(large, {large.params[1].name, name}).status().message().find("expected at most 67108864") !=
        std::string::npos);
}

TEST_CASE("a digest that brings too little, or bytes of no part of a parameter, is an error") {
  const auto plan = planned({2}, 1, 0);
  REQUIRE(plan.ok());
  const auto index = find_parameters(*plan, {"layer0.up"});
  REQUIRE(index.ok());
  const std::int64_t whole = 40 * 24;
  std::vector<Closed> places(2);
  const auto bring = [&](std::int64_t elements) {
    Report r;
    r.kind = Report::Kind::digest;
    r.name = "layer0.up|[0:40, 0:24]";
    r.bytes.assign(static_cast<std::size_t>(elements) * sizeof(float), std::byte{0});
    return r;
  };
  CHECK(assemble(*plan, *index, places)->empty());  // a run without kernels
  places[1].reports = {bring(whole - 1)};
  CHECK(assemble(*plan, *index, places).status().message() ==
        "worker 1 brings 3836 bytes of 'layer0.up'; its part has 960 elements");
  places[1].reports = {bring(whole)};
  CHECK(assemble(*plan, *index, places)->at("layer0.up").values.size() == 960);
  places[0].reports = {bring(whole)};  // two replicas
  CHECK(assemble(*plan, *index, places).status().message() ==
        "the places bring 1920 elements of parameter 'layer0.up', and it has 960");
  const auto both = find_parameters(*plan, {"layer0.up", "layer0.down"});
  places[0].reports = {};
  CHECK(assemble(*plan, *both, places).status().message() ==
        "the places bring 0 elements of parameter 'layer0.down', and it has 960");
}
