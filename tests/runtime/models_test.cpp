// Models: each with stages and meshes of its own, on which its units are cut.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/search/shapes.h"
#include "tests/runtime/two_nets.h"

using namespace mlp;

namespace {

/// Each net is a model of its own.
Graph models(const std::vector<Net>& all) {
  Graph g(ops());
  for (Net net : all) {
    g.model(net.name);
    net.units = net.name + "-";
    add_net(g, net);
  }
  return g;
}

CompileOptions on(std::vector<ModelStages> stages, std::int32_t zero = 0) {
  CompileOptions o;
  o.models = std::move(stages);
  o.zero = zero;
  o.seed = 7;
  return o;
}

CompileOptions alone_on(std::vector<Mesh> stages) {
  CompileOptions o;
  o.stages = std::move(stages);
  o.seed = 7;
  return o;
}

std::string refusal(const Graph& g, const CompileOptions& o) {
  const auto p = compile(g, o);
  return p.ok() ? "accepted" : p.status().message();
}

std::map<std::string, std::int32_t> slots_of(const Plan& p, const std::string& begins) {
  std::map<std::string, std::int32_t> out;
  for (const PlanRole& role : p.roles)
    for (const PlanChannel& c : role.channels)
      for (const std::int32_t t : c.tensors)
        if (const std::string& name = p.tensors[t].name; name.starts_with(begins) && c.rate == Rate::microbatch)
          out[name.substr(0, name.find("stage"))] = c.slots;  // "x@" for "x@stage1"
  return out;
}

/// Rows of 24 elements, of two samples.
Value source(Graph& g, const std::string& name) {
  return g.actor("data", name, {}, {{name, {DType::f32, {2, 24}}}}, {{"stream", name}})[0];
}

void train_towards(Graph& g, Value x) { g.minimize(g.op("mse_loss", {x, source(g, "t")}, {{"scale", 0.1}})[0], {}); }

/// Of three steps of the first program that trains.
std::vector<double> losses_of(const Plan& p) {
  SessionOptions session;
  session.steps = 3;
  const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {});
  REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
  std::vector<double> all;
  for (const StepResult& step : out.run.steps) all.push_back(step.loss);
  return all;
}

}  // namespace

TEST_CASE("models of different shapes train on meshes of their own, dp=3 and tp=2, with the bits that each has alone") {
  std::map<std::string, Trained> alone;
  alone["small"] = train_net(compiled(nets({small}), one_place()), small, 4);
  for (const std::int64_t tp : {2, 3}) {
    alone["large"] = train_net(compiled(nets({large}), alone_on(stage_meshes({1}, tp))), large, 4);
    for (const std::int32_t zero : {0, 1, 2, 3})
      for (const bool turned : {false, true}) {
        CAPTURE(tp);
        CAPTURE(zero);
        CAPTURE(turned);
        std::vector<ModelStages> stages = {{"small", stage_meshes({3})}, {"large", stage_meshes({1}, tp)}};
        if (turned) std::swap(stages[0], stages[1]);
        CompileOptions o = on(stages, zero);
        o.keeps_version = zero % 2 == 1;
        const Plan p = compiled(turned ? models({large, small}) : models({small, large}), o);
        CHECK(p.workers() == 3 + tp);
        CHECK(p.dp_width(turned ? 1 : 0) == 3);
        CHECK(p.meshes[turned ? 1 : 0].ranks[0] == (turned ? static_cast<Rank>(tp) : 0));
        for (const Net& net : {small, large}) check_same(train_net(p, net, 4, {.seed = 3}), alone[net.name]);
      }
  }
}

namespace {

/// Adds a model of units "NAME0", "NAME1", ..., each of a product of this width, which program NAME trains.
void add_chain(Graph& g, const std::string& name, int units, std::int64_t width, const std::string& program = {}) {
  g.model(name);
  if (program.empty()) g.program(name, {6, 2});
  Value x = -1;
  for (int u = 0; u < units; ++u) {
    const std::string unit = name + std::to_string(u);
    g.unit(unit);
    if (x < 0) x = g.actor("data", name + ".x", {}, {{"x", {DType::f32, {2, width}}}}, {{"stream", name + ".x"}})[0];
    x = g.op("linear", {x, g.param(unit + ".w", {width, width}, Init::normal(0.2f))}, {}, unit + ".linear")[0];
  }
  const Value t = g.actor("data", name + ".t", {}, {{"t", {DType::f32, {2, width}}}}, {{"stream", name + ".t"}})[0];
  g.minimize(g.op("mse_loss", {x, t}, {{"scale", 0.1}})[0], {});
}

std::vector<std::vector<std::string>> units_on_stages(const Plan& p) {
  std::vector<std::vector<std::string>> out;
  for (const PlanRole& role : p.roles) out.push_back(role.units);
  return out;
}

}  // namespace

TEST_CASE("units of a model are cut by the costs of its own units and the widths of its own stages") {
  const std::vector<std::vector<std::string>> of_light = {{"light0", "light1", "light2"}, {"light3"}},
                                              of_heavy = {{"heavy0", "heavy1"}, {"heavy2", "heavy3"}};
  for (const bool turned : {false, true}) {
    Graph g(ops());
    add_chain(g, turned ? "heavy" : "light", 4, turned ? 96 : 24);
    add_chain(g, turned ? "light" : "heavy", 4, turned ? 24 : 96);
    std::vector<ModelStages> stages = {{"light", stage_meshes({3, 1})}, {"heavy", stage_meshes({1, 1})}};
    auto expected = of_light;
    expected.insert(expected.end(), of_heavy.begin(), of_heavy.end());
    CHECK(units_on_stages(compiled(g, on(stages))) == expected);
    std::swap(stages[0], stages[1]);
    expected = of_heavy;
    expected.insert(expected.end(), of_light.begin(), of_light.end());
    CHECK(units_on_stages(compiled(g, on(stages))) == expected);
    // Where the compiler is given no stages for each, all lie on one chain, as if they were one model.
    const auto one = units_on_stages(compiled(g, alone_on(stage_meshes({1, 1}))));
    CHECK(one[0].size() + one[1].size() == 8);
    CHECK(one[0].size() >= 2);
    CHECK(one[1].size() >= 2);
  }
  Graph g(ops());
  add_chain(g, "light", 2, 24);
  add_chain(g, "heavy", 2, 24);
  CompileOptions o = on({{"light", stage_meshes({1, 1})}, {"heavy", stage_meshes({1, 1})}});
  o.stage_of_unit = {1, 0, 2, 3};
  CHECK(units_on_stages(compiled(g, o)) ==
        std::vector<std::vector<std::string>>{{"light1"}, {"light0"}, {"heavy0"}, {"heavy1"}});
  o.stage_of_unit = {0, 1, 1, 3};
  CHECK(refusal(g, o) == "unit 'heavy0' of model 'heavy' is on stage 1; the model has stages 2 to 3");
}

TEST_CASE("a model that is named again goes on; nodes behind its name belong to a unit of that name") {
  Graph g(ops());
  g.program("train", {2, 2});
  g.model("a");
  Value x = source(g, "x");
  x = g.op("linear", {x, g.param("a.w", {24, 24}, Init::normal(0.2f))})[0];
  g.unit("a1");
  x = g.op("relu", {x})[0];
  g.model("b");
  x = g.op("linear", {x, g.param("b.w", {24, 24}, Init::normal(0.2f))})[0];
  g.model("a");
  x = g.op("relu", {x}, {}, "back")[0];
  const Value t = source(g, "t");
  const Value loss = g.op("mse_loss", {x, t}, {{"scale", 0.1}})[0];
  g.model("b");  // gradients are made where their ops are
  g.minimize(loss, {});
  CHECK(g.models() == std::vector<std::string>{"a", "b"});
  CHECK(g.units() == std::vector<std::string>{"a", "a1", "b"});
  for (const std::int32_t unit : {0, 1, 2}) CHECK(g.model_of(unit) == (unit == 2 ? 1 : 0));
  for (const Node& n : g.nodes()) {
    if (n.name == "back") CHECK(g.units()[static_cast<std::size_t>(n.unit)] == "a");
    if (n.backward && n.of >= 0) CHECK(n.unit == g.nodes()[static_cast<std::size_t>(n.of)].unit);
  }
  compiled(g, on({{"b", stage_meshes({2})}, {"a", stage_meshes({1}, 2)}}));
}

TEST_CASE("units of a model are cut into its stages as they are where it is alone, with as many slots") {
  Graph g = models({small, large});
  // An evaluation in which data passes from one model to the other joins no chains: training does not wait for it.
  g.program("evaluate", {3, 2});
  g.unit("large-second");
  const Value y = g.actor("data", "y", {}, {{"y", {DType::f32, {2, 8}}}}, {{"stream", std::string("y")}})[0];
  g.model("small");
  g.unit("small-first");
  g.report("seen", g.op("relu", {y}, {}, "seen.relu")[0]);
  const Plan both = compiled(g, on({{"small", stage_meshes({2, 1})}, {"large", stage_meshes({1, 3})}}));
  REQUIRE(both.stages == 4);
  CHECK(both.roles[0].units == std::vector<std::string>{"small-first"});
  CHECK(both.roles[1].units == std::vector<std::string>{"small-second"});
  CHECK(both.roles[2].units == std::vector<std::string>{"large-first"});
  CHECK(both.roles[3].units == std::vector<std::string>{"large-second"});
  for (const Net& net : {small, large}) {
    const Plan one = compiled(models({net}),
                              alone_on(stage_meshes(net.name == "small" ? std::vector<std::int64_t>{2, 1}
                                                                        : std::vector<std::int64_t>{1, 3})));
    const auto slots = slots_of(one, net.name + "-");
    CHECK(slots.size() >= 4);
    CHECK(std::any_of(slots.begin(), slots.end(), [](const auto& of) { return of.second > 1; }));
    for (const auto& [name, count] : slots) {
      CAPTURE(name);
      CHECK(slots_of(both, net.name + "-").at(name) == count);
    }
    check_same(train_net(both, net, 3), train_net(one, net, 3));
  }
}

TEST_CASE("a place of a model is lost: the job goes on from one version of all models, bit for bit") {
  CompileOptions o = on({{"small", stage_meshes({3})}, {"large", stage_meshes({1}, 2)}});
  o.keeps_version = true;
  const Plan p = compiled(models({small, large}), o);
  std::map<std::string, Trained> whole;
  for (const Net& net : {small, large}) whole[net.name] = train_net(p, net, 5);
  int lost = 0;
  const std::int64_t events = whole["small"].run.events;
  for (std::int64_t at = 80; at < events; at += events / 12) {
    SimClusterOptions cluster;
    cluster.seed = static_cast<std::uint64_t>(at);
    cluster.recovers = true;
    cluster.stall_s = 120;
    cluster.faults = {
        {.at_event = at, .place = static_cast<Rank>(at % 3)}};  // places of `large` hold what no other has
    for (const Net& net : {small, large}) {
      const Trained one = train_net(p, net, 5, cluster);
      lost += one.run.restarts;
      check_same(one, whole[net.name]);
    }
  }
  CHECK(lost >= 10);
}

TEST_CASE("a stage is as wide as the programs that train there have microbatches, whatever those elsewhere have") {
  const auto stages = [](std::int64_t of_small, std::int64_t of_large) {
    return on({{"small", stage_meshes({of_small})}, {"large", stage_meshes({of_large})}});
  };
  const Graph g = models({small, large});
  CompileOptions o = stages(4, 6);
  o.keeps_version = true;
  const Plan p = compiled(g, o);
  for (const Net& net : {small, large})
    check_same(train_net(p, net, 3, {.seed = 5}), train_net(compiled(nets({net}), one_place()), net, 3));
  CHECK(refusal(g, stages(5, 6)) ==
        "dp=5 on stage 0 is more than the 4 microbatches of a step of program 'small': use "
        "dp=4 or less, or more microbatches");
  CHECK(refusal(g, stages(4, 7)).find("dp=7 on stage 1 is more than the 6 microbatches of a step of program 'large'") ==
        0);
  Plan wide = p;
  wide.programs[0].spec.microbatches = 3;
  CHECK(verify(wide).message().find("stage 0 has dp=4, more than the 3 microbatches of a step of program 'small'") !=
        std::string::npos);
  // A job that has lost places goes on with one of these.
  const auto shapes = shapes_for(p, 9);
  CHECK(shapes[0] == StageWidths{3, 6});
  CHECK(shapes[1] == StageWidths{4, 5});
  CHECK(shapes_for(p, 10)[0] == StageWidths{4, 6});
  const Plan mixed = compiled(g, on({{"small", stage_meshes({3})}, {"large", stage_meshes({2}, 2)}}));
  CHECK(shape_of(mixed) == "dp=3/2,pp=2,tp=1/2");
  CHECK(shapes_for(mixed, 6) == std::vector<StageWidths>{{2, 2}, {3, 1}});
  CHECK(shapes_for(mixed, 5) == std::vector<StageWidths>{{1, 2}, {3, 1}, {2, 1}});
  CHECK(shapes_for(mixed, 4) == std::vector<StageWidths>{{2, 1}});
  CHECK(shapes_for(mixed, 3) == std::vector<StageWidths>{{1, 1}});
  CHECK(shapes_for(mixed, 2).empty());
  const Plan apart = compiled(g, on({{"small", stage_meshes({3})}, {"large", stage_meshes({1})}}));
  CHECK(shapes_for(apart, 3) == std::vector<StageWidths>{{2, 1}});  // no other number of stages
  const auto replanned = [&](const StageWidths& dp) { return compile(g, stages(dp[0], dp[1])); };
  const auto chosen = choose_shape(apart, 3, replanned);
  REQUIRE_MESSAGE(chosen.ok(), chosen.status().message());
  CHECK(chosen->shape == "dp=2/1,pp=2");
  CHECK(plan_of({2}, [&](const StageWidths&) { return compile(g, stages(2, 1)); }, {}).status().message() ==
        "stages of dp 2 were asked for, and the plan has 2/1");
}

TEST_CASE("data passes from a model to another one on other model axes, and gradients back") {
  const auto build = [](bool apart) {
    Graph g(ops());
    g.program("train", {6, 2});
    if (apart) g.model("encoder");
    g.unit("encode");
    const Value x = source(g, "x");
    Value h = g.op("linear", {x, g.param("up", {40, 24}, Init::normal(0.3f))})[0];
    h = g.op("relu", {h})[0];
    h = g.op("linear", {h, g.param("down", {24, 40}, Init::normal(0.3f))})[0];
    if (apart) g.model("decoder");
    else g.unit("decoder");
    Value y = g.op("linear", {h, g.param("decode.up", {36, 24}, Init::normal(0.3f))})[0];
    y = g.op("relu", {y})[0];
    y = g.op("linear", {y, g.param("decode.down", {24, 36}, Init::normal(0.3f))})[0];
    y = g.op("add", {h, y})[0];
    const Value t = source(g, "t");
    kernels::AdamW hyper;
    g.minimize(g.op("mse_loss", {y, t}, {{"scale", 1.0 / 12}})[0], hyper);
    return g;
  };
  const auto train = [](const Plan& p) {
    SessionOptions session;
    session.steps = 4;
    session.parameters = {"up", "down", "decode.up", "decode.down"};
    const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {.seed = 4});
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    return out;
  };
  const SimOutcome one = train(compiled(build(false), one_place()));
  CHECK(build(true).units() == std::vector<std::string>{"encode", "decoder"});  // a model's first unit has its name
  struct Case {
    std::vector<Mesh> encoder, decoder;
  };
  for (const Case& c : {Case{stage_meshes({3}), stage_meshes({2})}, Case{stage_meshes({2}, 2), stage_meshes({1}, 3)},
                        Case{stage_meshes({1}, 3), stage_meshes({3})}, Case{stage_meshes({2}), stage_meshes({2}, 2)}})
    for (const std::int32_t zero : {0, 2, 3}) {
      // ZeRO 3 sends data to later stages only.
      std::vector<ModelStages> stages = {{"encoder", c.encoder}, {"decoder", c.decoder}};
      if (zero < 3) std::swap(stages[0], stages[1]);
      const Plan p = compiled(build(true), on(stages, zero));
      INFO(to_string(p.meshes[0]), to_string(p.meshes[1]), zero);
      const SimOutcome out = train(p);
      const bool divided = has_model_axis(p.meshes[0]) || has_model_axis(p.meshes[1]);
      for (std::size_t s = 0; s < 4; ++s)
        if (divided) CHECK(out.run.steps[s].loss == doctest::Approx(one.run.steps[s].loss).epsilon(1e-6));
        else CHECK(out.run.steps[s].loss == one.run.steps[s].loss);
      for (const auto& [name, parameter] : one.job.parameters)
        for (std::size_t i = 0; i < parameter.values.size(); ++i)
          if (const float value = out.job.parameters.at(name).values[i]; divided)
            REQUIRE(value == doctest::Approx(parameter.values[i]).epsilon(1e-3));
          else REQUIRE(value == parameter.values[i]);
    }
}

TEST_CASE("stages of a pipeline may have model axes of their own, but not where they share a parameter or a unit") {
  const std::vector<Mesh> mixed = {Mesh::dense({{"tp", 2}, {"dp", 1}}), Mesh::dense({{"tp", 1}, {"dp", 2}}, 2)};
  CompileOptions o = alone_on(mixed);
  o.stage_of_unit = {0, 0, 0, 1, 1};
  CHECK(refusal(graph(ops(), {}), o) == "accepted");
  Shape_ tied;
  tied.tied = true;
  CHECK(
      refusal(graph(ops(), tied), o) ==
      "parameter 'layer0.up' is read on stages 0 and 1, whose meshes {tp: 2, dp: 1} and {tp: 1, dp: 2} have model axes "
      "of other sizes: read it on stages that differ in the width of dp only");
  Graph g = graph(ops(), {});
  g.shared_unit("out");
  CHECK(refusal(g, o) ==
        "units shared by all stages need stages of equal meshes; stage 0 has {tp: 2, dp: 1}, stage 1 {tp: 1, dp: 2}");
}

TEST_CASE("models without stages, stages without models and units of two models are refused by name") {
  const Graph g = models({small, large});
  const ModelStages for_small{"small", stage_meshes({1})}, for_large{"large", stage_meshes({2})};
  CHECK(refusal(g, on({for_small, for_large})) == "accepted");
  CHECK(refusal(g, on({for_small})) == "CompileOptions::models has no stages for model 'large' of the graph");
  CHECK(refusal(g, on({for_small, for_large, {"huge", stage_meshes({1})}})) ==
        "CompileOptions::models, 'huge': the graph has no such model; it has small, large");
  CHECK(refusal(g, on({for_small, for_large, for_small})) == "CompileOptions::models, 'small' is there twice");
  CHECK(refusal(g, on({for_small, {"large", {}}})) ==
        "CompileOptions::models, 'large' has no stages: give a mesh or more, such as stage_meshes({1})");
  CHECK(
      refusal(g, on({for_small, {"large", {Mesh::dense({{"dp", 2}}, 1)}}})).find("CompileOptions::models, 'large': ") ==
      0);
  CHECK(refusal(g, on({for_small, {"large", {Mesh::dense({{"dp", 2}})}}})).find("has other axes than stage 0") !=
        std::string::npos);
  CHECK(refusal(g, on({for_small, {"large", stage_meshes({1, 1, 1})}})).find("model 'large': ") == 0);
  CompileOptions o = on({for_small, for_large});
  o.stages = stage_meshes({3});
  CHECK(refusal(g, o) == "CompileOptions has stages and models: the stages of a graph are the one or the other");
  o = on({for_small, for_large});
  o.stage_of_unit = {0, 1, 1, 1};
  CHECK(refusal(g, o) == "unit 'small-second' of model 'small' is on stage 1; the model has stages 0 to 0");
  o = on({for_small, for_large});
  o.pipeline.kind = Pipeline::Kind::zero_bubble;
  CHECK(refusal(g, o).find("is an order of the passes of one program") != std::string::npos);
  CHECK(refusal(models({small}), on({for_small})) == "accepted");
  CHECK(refusal(nets({small}), on({{"main", stage_meshes({2})}})) == "accepted");
  Graph twice = models({small});
  twice.model("other");
  twice.unit("small-first");
  CHECK(twice.status().message() ==
        "unit 'small-first' of model 'other' is of model 'small' already: say model(...) of that one first, or choose "
        "another name");
  Graph nameless(ops());
  nameless.model("");
  CHECK(nameless.status().message() == "a model without a name: choose one");
}

TEST_CASE(
    "a unit that all stages of a model share is divided over the stages of that model, whatever other models do") {
  const auto build = [](const std::vector<Net>& nets, const std::set<std::string>& sharing) {
    Graph g(ops());
    for (const Net& net : nets) {
      g.model(net.name);
      g.program(net.name, {net.microbatches, net.samples});
      g.unit(net.name + "-in");
      Value x = g.actor("data", net.name + ".x", {}, {{"x", {DType::f32, {net.samples, net.width}}}},
                        {{"stream", net.name + ".x"}})[0];
      x = g.op("linear", {x, g.param(net.name + ".up", {net.hidden, net.width}, Init::normal(0.3f))}, {},
               net.name + "-up")[0];
      g.unit(net.name + "-out");
      x = g.op("relu", {x}, {}, net.name + "-relu")[0];
      const Value t = g.actor("data", net.name + ".t", {}, {{"t", {DType::f32, {net.samples, net.width}}}},
                              {{"stream", net.name + ".t"}})[0];
      if (sharing.count(net.name) > 0) g.shared_unit(net.name + "-shared");
      x = g.op("linear", {x, g.param(net.name + ".down", {net.width, net.hidden}, Init::normal(0.3f))}, {},
               net.name + "-down")[0];
      g.minimize(g.op("mse_loss", {x, t}, {{"scale", 0.1}}, net.name + "-loss")[0], {});
    }
    return g;
  };
  const auto losses = [](const Plan& p, const std::string& of) {
    SessionOptions session;
    session.steps = 3;
    const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {.seed = 2});
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    std::vector<double> told;
    for (const StepResult& step : out.run.steps)
      told.push_back(step.program == of ? step.loss : step.others.at(0).loss);
    return told;
  };
  const std::map<std::string, std::vector<Mesh>> meshes = {{"small", stage_meshes({2, 2})},
                                                           {"large", stage_meshes({3, 3})}};
  for (const std::set<std::string>& sharing :
       {std::set<std::string>{"small"}, std::set<std::string>{"large"}, std::set<std::string>{"small", "large"}})
    for (const bool turned : {false, true}) {
      const std::vector<std::string> order = turned ? std::vector<std::string>{"large", "small"}
                                                    : std::vector<std::string>{"small", "large"};
      const Plan both = compiled(build({small, large}, sharing),
                                 on({{order[0], meshes.at(order[0])}, {order[1], meshes.at(order[1])}}));
      std::int32_t mesh = 4;  // behind those of the stages: the unions, in the order of the models
      for (const std::string& name : order) {
        CAPTURE(name);
        const std::int32_t first = name == order[0] ? 0 : 2;
        if (sharing.count(name) > 0) CHECK(both.stages_on(mesh++) == std::vector<std::int32_t>{first, first + 1});
        const Plan one = compiled(build({name == "small" ? small : large}, sharing), alone_on(meshes.at(name)));
        CHECK(losses(both, name) == losses(one, name));
        const auto slots = slots_of(one, name + "-"), of_both = slots_of(both, name + "-");
        CHECK(slots.size() >= 3);
        for (const auto& [tensor, count] : slots) {
          CAPTURE(tensor);
          CHECK(of_both.at(tensor) == count);
        }
      }
    }
}

TEST_CASE("an order of the passes of one chain of stages is refused where a program has several") {
  Graph g(ops());
  add_chain(g, "a", 2, 24);
  g.model("b");
  g.unit("b0");
  CompileOptions o = on({{"a", stage_meshes({1, 1})}, {"b", stage_meshes({1})}});
  o.pipeline.kind = Pipeline::Kind::zero_bubble;
  CHECK(
      refusal(g, o) ==
      "pipeline schedule zero-bubble is an order of the passes of one chain of stages, and each model has its own: use "
      "1f1b");
}

TEST_CASE("stages that are alike share a parameter, whatever model axes a stage has that does not read it") {
  Graph g(ops());
  g.program("train", {4, 2});
  Value x = -1;
  for (int u = 0; u < 3; ++u) {
    g.unit("u" + std::to_string(u));
    if (x < 0) x = source(g, "x");
    x = g.op("linear", {x, g.param(u == 0 ? "own" : "tied", {24, 24}, Init::normal(0.3f))})[0];
    x = g.op("relu", {x})[0];
  }
  train_towards(g, x);
  const auto stages = [](std::int64_t tp0, std::int64_t tp, std::int64_t dp) {
    return std::vector<Mesh>{Mesh::dense({{"tp", tp0}, {"dp", 1}}),
                             Mesh::dense({{"tp", tp}, {"dp", dp}}, static_cast<Rank>(tp0)),
                             Mesh::dense({{"tp", tp}, {"dp", 1}}, static_cast<Rank>(tp0 + tp * dp))};
  };
  const Plan p = compiled(g, alone_on(stages(1, 2, 2)));
  CHECK(p.stages_on(p.tensors[p.params[1].tensor].mesh) == std::vector<std::int32_t>{1, 2});
  CHECK(losses_of(p) == losses_of(compiled(g, alone_on(stages(1, 2, 1)))));
  const auto one = losses_of(compiled(g, one_place()));
  for (std::size_t s = 0; s < one.size(); ++s) CHECK(losses_of(p)[s] == doctest::Approx(one[s]).epsilon(1e-6));
  Plan wrong = p;  // as if the second of them had other model axes
  wrong.meshes[2] = Mesh::dense({{"tp", 1}, {"dp", 2}}, wrong.meshes[2].ranks[0]);
  CHECK(verify(wrong).message().find("is made of stages 1 and 2, whose model axes differ in size") !=
        std::string::npos);
}

TEST_CASE("a hint that splits a parameter along an axis means nothing on a stage that has one place there") {
  for (const std::int64_t tp : {1, 2}) {
    Graph g(ops());
    g.program("train", {4, 2});
    g.unit("narrow");
    Value x = source(g, "x");
    const Value w = g.param("w", {24, 24}, Init::normal(0.3f));
    g.hint(w, {Sbp::S(0), Sbp::B()});
    x = g.op("linear", {x, w})[0];
    g.unit("wide");
    x = g.op("linear", {x, g.param("v", {24, 24}, Init::normal(0.3f))})[0];
    train_towards(g, x);
    CompileOptions o = alone_on({Mesh::dense({{"tp", 1}, {"dp", 1}}), Mesh::dense({{"tp", tp}, {"dp", 1}}, 1)});
    o.stage_of_unit = {0, 1};
    CHECK(refusal(g, o) == "accepted");
  }
}

TEST_CASE("a model whose stages only read parameters of another one is as wide as its own microbatches let it be") {
  Graph g(ops());
  g.program("train", {4, 2});
  g.model("learner");
  Value x = source(g, "x");
  const Value w = g.param("w", {24, 24}, Init::normal(0.3f));
  x = g.op("linear", {x, w})[0];
  train_towards(g, x);
  g.program("act", {8, 2});
  g.model("actor");
  Value y = source(g, "y");
  g.report("acted", g.op("linear", {y, w})[0]);
  const auto told = [&](const CompileOptions& o) {
    SessionOptions session;
    session.steps = 3;
    std::vector<double> all;
    session.readers = [](std::int64_t) { return std::vector<std::string>{"act"}; };
    session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
      for (const Report& report : reports) all.insert(all.end(), report.values.begin(), report.values.end());
    };
    const SimOutcome out = simulate_job(compiled(g, o), ops(), actor_set(), session, {.seed = 3});
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    for (const StepResult& step : out.run.steps) all.push_back(step.loss);
    return all;
  };
  const auto expected = told(one_place());
  CHECK(expected.size() > 3 * 8);
  for (const std::int32_t zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    CHECK(told(on({{"learner", stage_meshes({4})}, {"actor", stage_meshes({8})}}, zero)) == expected);
  }
  CHECK(refusal(g, on({{"learner", stage_meshes({1}, 2)}, {"actor", stage_meshes({2})}}))
            .find("parameter 'w' is read on stages 0 and 1, whose meshes {tp: 2, dp: 1} and {tp: 1, dp: 2}") == 0);
}

TEST_CASE("stages that divide their units among more places get more of them") {
  Graph g(ops());
  add_chain(g, "model", 5, 48);
  const std::vector<Mesh> mixed = {Mesh::dense({{"tp", 4}, {"dp", 1}}), Mesh::dense({{"tp", 1}, {"dp", 1}}, 4)};
  CHECK(units_on_stages(compiled(g, alone_on(mixed))) ==
        std::vector<std::vector<std::string>>{{"model0", "model1", "model2", "model3"}, {"model4"}});
}

TEST_CASE("terms of a sum over two model axes become a sum of fewer terms on a stage that has one of them") {
  Graph g(ops());
  g.program("train", {4, 2});
  const auto linear = [&](Value x, const std::string& name) {
    return g.op("linear", {x, g.param(name, {24, 24}, Init::normal(0.3f))}, {}, name + ".linear")[0];
  };
  g.unit("first");
  Value x = source(g, "x");
  x = linear(x, "w0");
  g.require(x, {Sbp::P(), Sbp::P(), Sbp::B()});
  g.unit("second");
  const Value y = linear(source(g, "y"), "w1");
  g.require(y, {Sbp::B(), Sbp::P(), Sbp::B()});
  Value z = g.op("add", {x, y})[0];
  g.require(z, {Sbp::B(), Sbp::P(), Sbp::B()});
  z = linear(z, "w2");
  train_towards(g, z);
  const auto stages = [](std::int64_t ep0, std::int64_t tp0, std::int64_t ep, std::int64_t tp) {
    return std::vector<Mesh>{Mesh::dense({{"ep", ep0}, {"tp", tp0}, {"dp", 1}}),
                             Mesh::dense({{"ep", ep}, {"tp", tp}, {"dp", 1}}, static_cast<Rank>(ep0 * tp0))};
  };
  const auto one = losses_of(compiled(g, alone_on(stages(1, 1, 1, 1))));
  for (const auto& mixed : {stages(2, 2, 1, 2), stages(2, 2, 1, 3), stages(1, 2, 2, 2), stages(2, 2, 1, 4)}) {
    INFO(to_string(mixed[0]), to_string(mixed[1]));
    const auto got = losses_of(compiled(g, alone_on(mixed)));
    for (std::size_t s = 0; s < one.size(); ++s) CHECK(got[s] == doctest::Approx(one[s]).epsilon(1e-6));
  }
}
