// Models: each with stages and meshes of its own, on which its units are cut.
#include <doctest/doctest.h>

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

TEST_CASE("units of a model are cut into its stages as they are where it is alone, with as many slots") {
  const Plan both = compiled(models({small, large}),
                             on({{"small", stage_meshes({2, 1})}, {"large", stage_meshes({1, 3})}}));
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
  CHECK(verify(wide).message().find("stage 0 has dp=4, more than the 3 microbatches") != std::string::npos);
  // A job that has lost places goes on with one of these.
  const auto shapes = shapes_for(p, 9);
  CHECK(shapes[0] == StageWidths{3, 6});
  CHECK(shapes[1] == StageWidths{4, 5});
  CHECK(shapes_for(p, 10)[0] == StageWidths{4, 6});
  const Plan mixed = compiled(g, on({{"small", stage_meshes({3})}, {"large", stage_meshes({2}, 2)}}));
  CHECK(shape_of(mixed) == "dp=3/2,pp=2,tp=1/2");
  CHECK(shapes_for(mixed, 6) == std::vector<StageWidths>{{2, 2}, {3, 1}});
  CHECK(shapes_for(mixed, 5) == std::vector<StageWidths>{{3, 1}});
  CHECK(shapes_for(mixed, 4).empty());
}

TEST_CASE("data passes from a model to another one on other model axes, and gradients back") {
  const auto build = [](bool apart) {
    Graph g(ops());
    g.program("train", {6, 2});
    if (apart) g.model("encoder");
    g.unit("encode");
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 24}}}}, {{"stream", std::string("x")}})[0];
    Value h = g.op("linear", {x, g.param("up", {40, 24}, Init::normal(0.3f))})[0];
    h = g.op("relu", {h})[0];
    h = g.op("linear", {h, g.param("down", {24, 40}, Init::normal(0.3f))})[0];
    if (apart) g.model("decoder");
    else g.unit("decoder");
    Value y = g.op("linear", {h, g.param("decode.up", {36, 24}, Init::normal(0.3f))})[0];
    y = g.op("relu", {y})[0];
    y = g.op("linear", {y, g.param("decode.down", {24, 36}, Init::normal(0.3f))})[0];
    y = g.op("add", {h, y})[0];
    const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 24}}}}, {{"stream", std::string("t")}})[0];
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
        "CompileOptions::models, 'large' has no stages: give a mesh for each, see stage_meshes");
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
        "unit 'small-first' of model 'other' is of model 'small' already: choose another name");
  Graph nameless(ops());
  nameless.model("");
  CHECK(nameless.status().message() == "a model without a name: choose one");
}

TEST_CASE(
    "a unit that all stages of a model share is divided over the stages of that model, whatever other models do") {
  const auto build = [](bool both) {
    Graph g(ops());
    for (const Net& net : both ? std::vector<Net>{large, small} : std::vector<Net>{small}) {
      g.model(net.name);
      g.program(net.name, {net.microbatches, net.samples});
      g.unit(net.name + "-in");
      Value x = g.actor("data", net.name + ".x", {}, {{"x", {DType::f32, {net.samples, net.width}}}},
                        {{"stream", net.name + ".x"}})[0];
      x = g.op("linear", {x, g.param(net.name + ".up", {net.hidden, net.width}, Init::normal(0.3f))})[0];
      g.unit(net.name + "-out");
      x = g.op("relu", {x})[0];
      const Value t = g.actor("data", net.name + ".t", {}, {{"t", {DType::f32, {net.samples, net.width}}}},
                              {{"stream", net.name + ".t"}})[0];
      if (net.name == "small") g.shared_unit(net.name + "-shared");
      x = g.op("linear", {x, g.param(net.name + ".down", {net.width, net.hidden}, Init::normal(0.3f))})[0];
      g.minimize(g.op("mse_loss", {x, t}, {{"scale", 0.1}})[0], {});
    }
    return g;
  };
  const auto losses = [](const Plan& p) {
    SessionOptions session;
    session.steps = 3;
    const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {.seed = 2});
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    std::vector<double> of_small;
    for (const StepResult& step : out.run.steps)
      of_small.push_back(step.program == "small" ? step.loss : step.others.at(0).loss);
    return of_small;
  };
  const Plan one = compiled(build(false), alone_on(stage_meshes({2, 2})));
  const Plan both = compiled(build(true), on({{"large", stage_meshes({3, 1})}, {"small", stage_meshes({2, 2})}}));
  CHECK(both.stages_on(4) == std::vector<std::int32_t>{2, 3});
  CHECK(losses(both) == losses(one));
}
