// Graphs and plans in which several programs train: what is refused, and what people, shapes and measures make of them.
#include <doctest/doctest.h>

#include "runtime/elastic/stragglers.h"
#include "runtime/search/ahead.h"
#include "runtime/search/shapes.h"
#include "runtime/session/checkpoint_tracker.h"
#include "runtime/show/plan_text.h"
#include "runtime/simulate/game.h"
#include "tests/runtime/planted.h"
#include "tests/runtime/two_nets.h"

using namespace mlp;
using planted::check_refused;

TEST_CASE("parameters that a loss is to train and cannot are refused by name") {
  const auto says = [](const std::function<void(Graph&, Value, Value, Value)>& change, const std::string& text) {
    Graph g(ops());
    g.program("train", {1, 1});
    g.unit("all");
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 4}}}}, {{"stream", std::string("x")}})[0];
    const Value w = g.param("w", {4, 4}, Init::normal(0.1f)), idle = g.param("idle", {4, 4}, Init::normal(0.1f));
    const Value y = g.op("linear", {x, w})[0];
    const Value loss = g.op("mse_loss", {y, x})[0];
    change(g, loss, w, idle);
    CHECK_MESSAGE(g.status().message().find(text) != std::string::npos, g.status().message());
  };
  says([](Graph& g, Value loss, Value, Value idle) { g.minimize(loss, {}, {idle}); },
       "depends on no parameter that it is to train");
  says(
      [](Graph& g, Value loss, Value w, Value idle) {
        g.minimize(loss, {}, {w, idle});
      },
      "does not depend on parameter 'idle', which it is to train");
  says([](Graph& g, Value loss, Value w, Value) { g.minimize(loss, {}, {w, loss}); }, "is no parameter");
  says([](Graph& g, Value loss, Value, Value) { g.minimize(loss, {}, {4711}); }, "4711");
  says([](Graph& g, Value loss, Value, Value) { g.minimize(loss, {}), g.minimize(loss, {}); },
       "program 'train' has a loss already");
}

TEST_CASE("options of a program that does not train are refused by name, and numbers that no program can have") {
  const Plan p = compiled(nets({small, large}), one_place());
  const auto says = [&](const SessionOptions& options) { return check_numbers(p, options).message(); };
  SessionOptions options;
  options.programs["medium"] = {};
  CHECK(says(options) ==
        "SessionOptions::programs names 'medium', and the plan trains no program of that name; it trains 'small', "
        "'large'");
  options.programs.clear();
  options.programs["digest"] = {};
  CHECK(says(options).find("'digest'") != std::string::npos);
  options.programs.clear();
  options.programs["large"] = {.clip = -1};
  CHECK(says(options) ==
        "SessionOptions::programs, 'large': clip is -1: expected a finite number above 0, or 0 for none");
  options.programs["large"] = {.loss_divisor = 0};
  CHECK(says(options).find("'large': loss_divisor is 0") != std::string::npos);
  options.programs["large"] = {};
  CHECK(says(options).empty());
}

TEST_CASE(
    "a plan in which a parameter is updated, or its gradient reduced, by another program than trains it is refused") {
  CompileOptions o;
  o.stages = stage_meshes({2});
  const Plan good = compiled(nets({small, large}), o);
  Plan p = good;
  for (auto& param : p.params) param.program = 0;
  check_refused(p, {"of a parameter that another program trains"});
  p = good;
  p.params[0].program = -1;
  check_refused(p, {"of a parameter that another program trains"});
  const Plan one = compiled(nets({small, large}), one_place());
  p = one;
  p.params[0].program = p.program("digest");
  check_refused(p, {"parameter '" + p.params[0].name + "' is trained by a program that does not train"});
  for (const std::int32_t program : {-1, 1}) {
    p = one;
    p.params[0].program = program;
    check_refused(p, {"parameter '" + p.params[0].name + "', which program 'small' does not train"});
  }
  p = one;
  for (auto& role : p.roles)
    for (auto& a : role.actors)
      if (a.kind == PlanActor::Kind::norm && a.program == 0) a.program = 1;
  check_refused(p, {"norm"});
  p = good;
  p.owners = {{0, 1, 0, 1}};
  check_refused(p, {"several programs train"});
}

TEST_CASE("a plan whose segment makes gradients for another program is refused by the parameter's name") {
  const Plan good = compiled(nets({small, large}), one_place());
  Plan p = good;
  std::int32_t of_large = -1;
  for (std::size_t i = 0; i < p.params.size(); ++i)
    if (p.params[i].program == 1) of_large = static_cast<std::int32_t>(i);
  REQUIRE(of_large >= 0);
  bool changed = false;
  for (auto& role : p.roles)
    for (auto& a : role.actors)
      if (a.program == 0 && a.kind == PlanActor::Kind::segment && !changed)
        for (auto id : a.out)
          if (role.channels[id].kind == PlanChannel::Kind::gradient && !changed) {
            p.tensors[role.channels[id].tensors[0]].gradient_of = of_large;
            changed = true;
          }
  REQUIRE(changed);
  check_refused(p, {p.params[of_large].name});
}

TEST_CASE("an order of passes, owners of microbatches and one feed in two programs are refused where several train") {
  const Graph g = nets({small, large});
  const auto says = [](const Graph& graph, const CompileOptions& o, const std::string& text) {
    const auto p = compile(graph, o);
    CHECK_MESSAGE(p.status().message().find(text) != std::string::npos, p.status().message());
  };
  CompileOptions o;
  o.stages = stage_meshes({1, 1});
  o.pipeline.kind = Pipeline::Kind::zero_bubble;
  says(g, o, "zero-bubble is an order of the passes of one program");
  o = {};
  o.stages = stage_meshes({2});
  o.owners = {{0, 1, 0, 1}};
  says(g, o, "several programs train");
  o = {};
  o.stages = stage_meshes({5});
  says(g, o, "dp=5 on stage 0 is more than the 4 microbatches of a step of program 'small'");
  Graph fed(ops());
  for (const char* name : {"one", "two"}) {
    fed.program(name, {2, 1});
    fed.unit("all");
    const Value x = fed.feed("x", {DType::f32, {1, 4}});
    const Value w = fed.param(std::string(name) + ".w", {4, 4}, Init::normal(0.1f));
    fed.minimize(fed.op("mse_loss", {fed.op("linear", {x, w})[0], x})[0], {});
  }
  says(fed, {}, "feed 'x' is of program 'one' and of 'two', which train together");
  Graph named(ops());
  add_net(named, small);
  named.program("other", {1, 2});
  named.unit("small.first");
  named.actor("data", "idle", {}, {{"x", {DType::f32, {2, 4}}}}, {{"stream", std::string("i")}});
  add_net(named, large);
  says(named, {}, "unit 'small.first' has the name of the actors of program 'small' in unit 'first'");
  Graph natural(ops());  // units that have the names of their programs, and no unit 'first'
  for (Net net : {small, large}) {
    net.units = net.name + ".";
    add_net(natural, net);
  }
  check_same(train_net(compiled(natural, one_place()), large, 2),
             train_net(compiled(nets({large}), one_place()), large, 2));
}

TEST_CASE("a message of a program that the plan does not have ends the run, and nothing is read for it") {
  const Plan p = compiled(nets({small, large}), one_place());
  for (const std::int32_t program : {-1, 99, 4711}) {
    SessionOptions options;
    options.steps = 2;
    Session session(p, options, nullptr, [](Rank, const ToWorker&) {});
    REQUIRE(session.begin().ok());
    Report report{Report::Kind::value, "x", 0, 0, {1}};
    CHECK(session.handle(0, EarlyReport{program, report}).code() == Code::internal);
    CHECK(session.handle(0, FeedTaken{"x", program, 0, 0}).code() == Code::internal);
  }
  // Nor does one of two programs speak by itself: the first does for both.
  SessionOptions options;
  options.steps = 2;
  Session session(p, options, nullptr, [](Rank, const ToWorker&) {});
  REQUIRE(session.begin().ok());
  CHECK(session.handle(0, Closed{1, 0, {}, 0}).code() == Code::internal);
}

TEST_CASE(
    "what people read of a plan with two programs that train names both, and the game's times are those of both") {
  const Plan both = compiled(nets({small, large}), one_place());
  const auto played = [](const Plan& p) {
    auto result = play(p, {});
    REQUIRE_MESSAGE(result.ok(), result.status().message());
    return *std::move(result);
  };
  const GameResult game = played(both);
  const double alone_s = played(compiled(nets({small}), one_place())).compute_s +
                         played(compiled(nets({large}), one_place())).compute_s;
  CHECK(game.compute_s == doctest::Approx(alone_s).epsilon(1e-9));
  CHECK(game.step_s >= game.compute_s);
  const std::string text = game_text(both, game);
  for (const char* says : {"4 microbatches a step, program 'small'", "6 microbatches a step, program 'large'", " F0 ",
                           " large.F0 ", " large.B5"})
    CHECK_MESSAGE(text.find(says) != std::string::npos, says, " is not in:\n", text);
  CHECK(text.find("published") == std::string::npos);
  const std::string plan = plan_text(both, game.locals, game);
  CHECK_MESSAGE(plan.find("per step of 'small' and 'large'") != std::string::npos, plan);
}

TEST_CASE("shapes to go on with suit each program that trains, and no microbatches are taken ahead") {
  const Plan p = compiled(nets({large, small}), one_place());
  for (const StageWidths& dp : shapes_for(p, 6)) {
    for (const std::int64_t width : dp) CHECK(width <= small.microbatches);
    CompileOptions o;
    o.stages = stage_meshes(dp);
    CHECK_MESSAGE(compile(nets({large, small}), o).ok(), to_string(o.stages[0]));
  }
  CompileOptions o;
  o.stages = stage_meshes({1, 1}, 2);
  const auto ahead = choose_ahead(nets({large, small}), o, {});
  REQUIRE_MESSAGE(ahead.ok(), ahead.status().message());
  CHECK(ahead->why_none == "several programs train");
}

TEST_CASE(
    "a place is measured by the work of all programs that train: more microbatches of a heavy one are no straggling") {
  const Net few{"few", 3, 2, 12, 8, 0}, heavy{"heavy", 4, 2, 48, 64, 0};
  CompileOptions o;
  o.stages = stage_meshes({2});
  Plan p = compiled(nets({few, heavy}), o);
  for (auto& role : p.roles)
    for (auto& a : role.actors)
      if (a.kind == PlanActor::Kind::segment) a.cost_s = a.program == 0 ? 1e-3 : 1e-2;
  Stragglers stragglers(p);
  constexpr std::int64_t ms = 1'000'000;
  std::int64_t now = 0;
  for (int i = 0; i < 30; ++i) {
    now += 1000 * ms;
    for (const auto& [rank, busy] : {std::pair(0, 220), std::pair(1, 210)})  // two of both; one and two
      CHECK(stragglers.voted(rank, busy * ms, now).empty());
  }
  CHECK(stragglers.times(0) == doctest::Approx(1).epsilon(0.02));
}

TEST_CASE(
    "a program that a checkpoint does not know begins without an update; the one that had trained keeps its count "
    "under "
    "another name, and one of several is refused under another name") {
  using checkpoint::TensorKind;
  checkpoint::Manifest m;
  m.stamp.step = 10;
  m.updates = 8;
  m.void_steps = 1;
  const auto save = [&](const Net& net, bool trained) {
    for (const char* layer : {"first", "second"})
      for (const char* part : {".down", ".up"})
        for (const TensorKind kind : {TensorKind::parameter, TensorKind::first_moment, TensorKind::second_moment})
          if (trained || kind == TensorKind::parameter)
            m.tensors.push_back({net.name + "." + layer + part, kind, DType::f32, {1, 1}, {}});
  };
  save(large, true);
  save(small, false);
  const Plan both = compiled(nets({small, large}), one_place());
  const auto counts = [&](const Plan& p) {
    const auto sums = sums_of(m, p);
    REQUIRE_MESSAGE(sums.ok(), sums.status().message());
    return sums->programs;
  };
  using Counts = std::map<std::string, UpdateCount>;
  CHECK(counts(both) == Counts{{"large", {8, 1}}, {"small", {0, 0}}});
  CHECK(PlanSums(both, *sums_of(m, both)).count(0) == UpdateCount{0, 0});
  CHECK(counts(compiled(nets({large}), one_place())).empty());
  m.programs = {{"other", 5, 0}};
  CHECK(sums_of(m, both).status().message() ==
        "the checkpoint has what the updates of program 'large' keep, and counts the updates of programs "
        "'other': call the program as it was called");
  m.programs = {{"large", 7, 0}, {"other", 5, 0}};
  CHECK(counts(both) == Counts{{"large", {7, 0}}, {"other", {5, 0}}, {"small", {0, 0}}});
}
