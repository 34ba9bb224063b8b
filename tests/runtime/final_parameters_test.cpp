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
  still.programs[static_cast<std::size_t>(still.step_program())].optimizer.reset();
  CHECK(find_parameters(still, {"layer0.up"}).status().message().find("the plan trains nothing") != std::string::npos);
  CHECK(find_parameters(still, {}).ok());
  Plan large = *plan;
  large.tensors[static_cast<std::size_t>(large.params[0].tensor)].shape = {final_parameters_bytes_max / 4, 1};
  const std::string name = large.params[0].name;
  CHECK(find_parameters(large, {name}).ok());
  CHECK(find_parameters(large, {large.params[1].name, name}).status().message().find("expected at most 67108864") !=
        std::string::npos);
}

TEST_CASE(
    "a parameter that stages share, or that tp divides beside dp and ZeRO, is whole and has the bits of one place") {
  Shape_ tied;
  tied.tied = true;
  const auto of = [&](const std::vector<std::int64_t>& dp, std::int64_t tp, std::int32_t zero) {
    CompileOptions o;
    o.stages = stage_meshes(dp, tp);
    o.zero = zero;
    o.seed = 7;
    const auto plan = compile(graph(ops(), tied), o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    std::vector<std::string> names;
    for (const auto& p : plan->params) names.push_back(p.name);
    auto result = trained(*plan, names, 2).job;
    REQUIRE_MESSAGE(result.status.ok(), result.status.message());
    REQUIRE(result.parameters.size() == names.size());
    return result.parameters;
  };
  for (const std::int64_t tp : {1, 2}) {  // NU-3 model axes: tp decides bits
    const auto one = of({1}, tp, 0);
    for (const auto& [dp, zero] : std::vector<std::pair<std::vector<std::int64_t>, std::int32_t>>{
             {{2}, 0}, {{2}, 3}, {{1, 1}, 0}, {{2, 1}, 1}, {{2, 1}, 3}}) {
      CAPTURE(tp);
      CAPTURE(zero);
      CAPTURE(dp.size());
      for (const auto& [name, parameter] : of(dp, tp, zero)) {
        CAPTURE(name);
        CHECK(parameter.values == one.at(name).values);
      }
    }
  }
}

TEST_CASE("a job that has lost a place, before its last step or behind it, has the parameters of one that has not") {
  const auto plan = planned({2}, 1, 0, true);
  REQUIRE(plan.ok());
  const auto undisturbed = trained(*plan, {"layer1.up"}).job.parameters;
  REQUIRE(undisturbed.size() == 1);
  int lost = 0;
  for (std::int64_t at = 5; at < 1200; at += 60) {
    SessionOptions session;
    session.steps = 3;
    session.loss_divisor = 16;
    session.lr = [](std::int64_t) { return 1e-2; };
    session.parameters = {"layer1.up"};
    SimClusterOptions cluster;
    cluster.recovers = true;
    cluster.faults = {{at, SimFault::Kind::kill, 1}};
    const SimOutcome out = simulate_job(*plan, ops(), actor_set(), std::move(session), cluster);
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    lost += static_cast<int>(out.job.incidents.size());
    CAPTURE(at);
    REQUIRE(out.job.parameters.size() == 1);
    CHECK(out.job.parameters.at("layer1.up").values == undisturbed.at("layer1.up").values);
  }
  CHECK(lost > 5);
}

TEST_CASE("places that bring too little, too much, or what is no part of a parameter are an error") {
  const auto plan = planned({2}, 1, 0);
  REQUIRE(plan.ok());
  const auto index = find_parameters(*plan, {"layer0.up"});
  REQUIRE(index.ok());
  const std::int64_t whole = 40 * 24;
  std::vector<Closed> places(2);
  const auto bring = [&](std::int64_t elements, double behind = 0) {
    Report r;
    r.kind = Report::Kind::parameter;
    r.name = "layer0.up|[0:40, 0:24]";
    r.values = {behind};
    r.bytes.assign(static_cast<std::size_t>(elements) * sizeof(float), std::byte{0x40});
    return r;
  };
  const auto said = [&] { return assemble(*plan, *index, places).status().message(); };
  CHECK(assemble(*plan, *index, places)->empty());  // a run without kernels
  places[1].reports = {bring(whole - 1)};
  CHECK(said() == "worker 1 brings 959 elements of 'layer0.up'; its part has 960");
  places[1].reports = {bring(whole + 1)};
  CHECK(said() == "worker 1 brings 3844 bytes of 'layer0.up' behind 0 elements; its part has 960");
  for (const double behind : {0.0, 99.0, 101.0, -1.0}) {
    places[1].reports = {bring(100), bring(whole - 100, behind)};
    CHECK(said() == "worker 1 brings 3440 bytes of 'layer0.up' behind 100 elements; its part has 960");
  }
  places[1].reports = {bring(whole)};
  places[1].reports[0].bytes.pop_back();
  CHECK(said() == "worker 1 brings 3839 bytes of 'layer0.up' behind 0 elements; its part has 960");
  places[1].reports = {bring(100), bring(whole - 100, 100)};
  const auto two = assemble(*plan, *index, places);
  REQUIRE_MESSAGE(two.ok(), two.status().message());
  float every = 0;
  std::memset(&every, 0x40, sizeof every);
  CHECK(two->at("layer0.up").values == std::vector<float>(960, every));
  places.resize(3);
  std::swap(places[1], places[2]);  // of a place that the plan does not have
  CHECK(said() == "worker 2 brings 400 bytes of 'layer0.up' behind 0 elements; its part has 0");
  std::swap(places[1], places[2]);
  places[1].reports = {bring(whole)};
  places[0].reports = {bring(whole)};  // two replicas
  CHECK(assemble(*plan, *index, places).status().message() ==
        "the places bring 1920 elements of parameter 'layer0.up', and it has 960");
  const auto both = find_parameters(*plan, {"layer0.up", "layer0.down"});
  places[0].reports = {};
  CHECK(assemble(*plan, *both, places).status().message() ==
        "the places bring 0 elements of parameter 'layer0.down', and it has 960");
}
