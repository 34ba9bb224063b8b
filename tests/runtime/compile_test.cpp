// What compile() refuses, and what the message names.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/runtime/mlp.h"

using namespace mlp;

TEST_CASE("compile refuses meshes that cannot work and names the numbers") {
  Shape_ s;
  auto p = plan(ops(), s, {9});
  REQUIRE_FALSE(p.ok());
  CHECK(p.status().message().find("dp=9") != std::string::npos);
  CHECK(p.status().message().find("8 microbatches of a step") != std::string::npos);
  p = plan(ops(), s, {1, 1, 1, 1, 1, 1});  // 5 units
  REQUIRE_FALSE(p.ok());
  CHECK(p.status().message().find("6 pipeline stages") != std::string::npos);
  CHECK(p.status().message().find("pp=5") != std::string::npos);
  for (const std::int32_t zero : {-1, 4}) {
    p = plan(ops(), s, {1}, zero);
    REQUIRE_FALSE(p.ok());
    CHECK(p.status().message().find("CompileOptions::zero is " + std::to_string(zero)) != std::string::npos);
  }
}

TEST_CASE("compile refuses meshes that overlap, leave a rank out or differ in more than dp, and names stage and rank") {
  auto refusal = [](std::vector<Mesh> stages) {
    CompileOptions o;
    o.stages = std::move(stages);
    const auto p = compile(graph(ops(), {}), o);
    return p.ok() ? "accepted" : p.status().message();
  };
  auto check = [](const std::string& message, const std::vector<std::string>& parts) {
    for (const auto& part : parts)
      CHECK_MESSAGE(message.find(part) != std::string::npos, "'" << part << "' is not in: " << message);
  };
  CHECK(refusal(stage_meshes({2, 1})) == "accepted");
  CHECK(refusal({}) == "accepted");  // one place
  check(refusal({Mesh::dense({{"dp", 2}}), Mesh::dense({{"dp", 2}}, 1)}), {"stage 1", "rank 1", "stage 0 has too"});
  check(refusal({Mesh::dense({{"dp", 2}}), Mesh::dense({{"dp", 1}}, 3)}), {"rank 2", "stage 1 has rank 3", "0 to 2"});
  check(refusal({Mesh::dense({{"dp", 1}}, -1)}), {"rank -1", "0 to 0"});
  check(refusal({{{{"dp", 2}}, {0, 0}}}), {"stage 0", "rank 0"});
  check(refusal({{{{"dp", 2}}, {0, 1, 2}}}), {"{dp: 2}", "has 3 ranks", "need 2"});
  check(refusal({{{{"dp", 0}}, {}}}), {"stage 0", "size 0"});
  check(refusal({{{{"dp", 1}, {"dp", 1}}, {0}}}), {"two axes called 'dp'"});
  CHECK(refusal({Mesh::dense({{"tp", 2}, {"dp", 1}}), Mesh::dense({{"tp", 1}, {"dp", 2}}, 2)}) == "accepted");
  check(refusal({Mesh::dense({{"dp", 1}}), Mesh::dense({{"tp", 1}, {"dp", 1}}, 1)}),
        {"stage 1", "other axes than stage 0", "of size 1 where they divide nothing"});
  check(refusal({Mesh::dense({{"ep", 1}, {"tp", 1}, {"dp", 1}}), Mesh::dense({{"tp", 1}, {"ep", 1}, {"dp", 1}}, 1)}),
        {"stage 1", "other axes than stage 0", "in one order"});
  check(refusal({Mesh::dense({{"dp", 2}, {"tp", 2}})}), {"stage 0", "axis behind dp"});
}

TEST_CASE(
    "training without a dp axis is refused by the stage that lacks it, or by all stages where these share a unit") {
  const auto refusal = [](bool shared) {
    Graph g(ops());
    g.program("train", {4, 2});
    g.unit("in");
    Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 8}}}}, {{"stream", std::string("x")}})[0];
    const Value y = g.actor("data", "y", {}, {{"y", {DType::f32, {2, 8}}}}, {{"stream", std::string("y")}})[0];
    g.unit("middle");
    x = g.op("relu", {x})[0];
    if (shared) g.shared_unit("head");
    else g.unit("head");
    x = g.op("linear", {x, g.param("w", {8, 8}, Init::normal(0.2f))})[0];
    g.minimize(g.op("mse_loss", {x, y}, {{"scale", 1.0 / 64}})[0], {});
    CompileOptions o;
    o.stages = {Mesh::dense({{"tp", 1}}), Mesh::dense({{"tp", 1}}, 1)};
    const auto p = compile(g, o);
    REQUIRE_FALSE(p.ok());
    return p.status().message();
  };
  const std::string own = refusal(false), together = refusal(true);
  CHECK_MESSAGE(own.find("needs a mesh with a dp axis (stage 1 has {tp: 1})") != std::string::npos, own);
  CHECK_MESSAGE(together.find("needs a mesh with a dp axis (all stages together have {tp: 1") != std::string::npos,
                together);
}

TEST_CASE(
    "compile refuses stages of units that are missing, out of range or unused, and names the unit or the stage; any "
    "order will do") {
  auto refusal = [](std::vector<std::int32_t> stage_of_unit) {
    CompileOptions o;
    o.stages = stage_meshes({1, 1, 1});
    o.stage_of_unit = std::move(stage_of_unit);
    const auto p = compile(graph(ops(), {}), o);  // units: in, layer0, layer1, layer2, out
    return p.ok() ? "accepted" : p.status().message();
  };
  auto check = [](const std::string& message, const std::vector<std::string>& parts) {
    for (const auto& part : parts)
      CHECK_MESSAGE(message.find(part) != std::string::npos, "'" << part << "' is not in: " << message);
  };
  CHECK(refusal({0, 0, 1, 2, 2}) == "accepted");
  check(refusal({0, 1, 2}), {"3 entries", "5 units"});
  check(refusal({0, 0, 1, 2, 3}), {"unit 'out'", "stage 3", "0 to 2"});
  check(refusal({0, 0, 1, 2, -1}), {"unit 'out'", "stage -1"});
  CHECK(refusal({0, 1, 0, 1, 2}) == "accepted");
  CHECK(refusal({2, 1, 0, 1, 2}) == "accepted");
  check(refusal({0, 0, 2, 2, 2}), {"no unit is on stage 1 of 3"});
  check(refusal({1, 1, 1, 2, 2}), {"no unit is on stage 0 of 3"});
  check(refusal({0, 0, 1, 1, 1}), {"no unit is on stage 2 of 3"});
}

TEST_CASE("compile refuses a mesh with an axis that has the name of its own, 'stages'") {
  CompileOptions o;
  o.stages = {Mesh::dense({{"stages", 2}, {"dp", 1}})};
  const auto p = compile(graph(ops(), {}), o);
  REQUIRE_FALSE(p.ok());
  const std::string message = p.status().message();
  CHECK_MESSAGE(message.find("{stages: 2, dp: 1} has an axis called 'stages'") != std::string::npos, message);
}

TEST_CASE("compile refuses costs that no machine can have, and names the option and the member") {
  CompileOptions o;
  o.costs.places_per_node = 0;
  const auto p = compile(graph(ops(), {}), o);
  REQUIRE_FALSE(p.ok());
  const std::string message = p.status().message();
  CHECK_MESSAGE(message.find("CompileOptions::costs: places_per_node is 0") != std::string::npos, message);
}

TEST_CASE("stages are cut by what kernels were measured to take, where they were") {
  Shape_ s;
  s.layers = 4;
  auto layers_before_the_cut = [&](const CostModel& costs) {
    CompileOptions o;
    o.stages = stage_meshes({1, 1});
    o.costs = costs;
    const auto p = compile(graph(ops(), s), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    return std::count_if(p->roles[0].units.begin(), p->roles[0].units.end(),
                         [](const std::string& u) { return u.starts_with("layer"); });
  };
  CostModel costs;
  CHECK(layers_before_the_cut(costs) == 2);
  costs.kernels["linear"] = {{3840, 4352, 1}};  // a layer has two
  CHECK(layers_before_the_cut(costs) == 2);
  costs.kernels["mse_loss"] = {{100, 400, 8}};  // the last unit has as much work as four layers
  CHECK(layers_before_the_cut(costs) == 4);
}

TEST_CASE("a checkpoint's writer takes the time of its place's bytes on the disk, which the places of a node share") {
  const auto writers_s = [&](const CostModel& costs, std::int64_t dp) {
    CompileOptions o;
    o.stages = stage_meshes({dp});
    o.snapshots = 1;
    o.costs = costs;
    const auto p = compile(graph(ops(), {}), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    double s = 0;
    for (const auto& a : p->roles[0].actors)
      if (a.kind == PlanActor::Kind::writer) s += a.cost_s;
    return s;
  };
  CostModel costs;
  costs.disk_bytes_per_s = 1e6;
  const Shape_ s;
  // of the layers' parameters and their moments
  const double bytes = 3 * 4 * 2.0 * static_cast<double>(s.layers * s.width * s.hidden);
  CHECK(writers_s(costs, 1) == doctest::Approx(bytes / 1e6));
  // half of it each, at half the rate
  CHECK(writers_s(costs, 2) == doctest::Approx(writers_s(costs, 1)));
  costs.places_per_node = 1;
  CHECK(writers_s(costs, 2) == doctest::Approx(writers_s(costs, 1) / 2));
  costs.disk_bytes_per_s = 1e7;
  CHECK(writers_s(costs, 2) == doctest::Approx(bytes / 2 / 1e7));
}

TEST_CASE(
    "a checkpoint takes the time of what the first place of a stage saves: the same with every ZeRO stage; of a tied "
    "parameter a share of its own; no moments where nothing is trained, and no time for an update") {
  Shape_ s;
  s.tied = true;  // layer0.up is read on both stages
  Graph g = graph(ops(), s);
  g.unit("probe");
  const Value x = g.actor("data", "probe.x", {}, {{"x", {DType::f32, {s.samples, s.width}}}},
                          {{"stream", std::string("probe")}})[0];
  g.report("probe", g.op("linear", {x, g.param("probe.w", {10, s.width}, Init::normal(0.2f))})[0]);
  CompileOptions o;
  o.stages = stage_meshes({2, 1});
  o.stage_of_unit = {0, 0, 0, 1, 1, 1};  // in, layer0, layer1, layer2, out, probe
  o.snapshots = 1;
  o.costs.disk_bytes_per_s = 1e6;
  o.costs.memory_bytes_per_s = 1e6;
  o.costs.launch_s = 0;
  o.costs.places_per_node = 1;  // no other place writes to the same disk
  for (o.zero = 0; o.zero <= 3; ++o.zero) {
    CAPTURE(o.zero);
    const auto p = compile(g, o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    const auto cost_s = [&](std::size_t stage, const std::string& name) {
      for (const auto& a : p->roles[stage].actors)
        if (a.name == name) return a.cost_s;
      FAIL("no actor '" << name << "'");
      return -1.0;
    };
    struct Saved {
      std::size_t stage;
      std::string group;
      double bytes;
    };
    for (const Saved& saved : {
             Saved{0, "layer0", 12 * 40 * 12},              // .down, half of its 24 rows; 4 bytes, and two moments
             Saved{0, "layer0.tied", 14 * 24 * 12},         // 40 rows over three places: 14, 13 and 13
             Saved{1, "layer0.tied", 13 * 24 * 12},         // the third of them
             Saved{0, "layer1", (20 * 24 + 12 * 40) * 12},  // .up and .down
             Saved{1, "layer2", 24 * 40 * 12},              // .down, whole
             Saved{1, "probe.fixed", 10 * 24 * 4},          // itself only
         }) {
      CAPTURE(saved.group);
      CHECK(cost_s(saved.stage, saved.group + ".writer") == doctest::Approx(saved.bytes / 1e6));
      // read and written
      CHECK(cost_s(saved.stage, saved.group + ".snapshot") == doctest::Approx(2 * saved.bytes / 1e6));
      CHECK((cost_s(saved.stage, saved.group + ".update") == 0) == (saved.group == "probe.fixed"));
    }
  }
}

TEST_CASE(
    "an exchange of two places takes one latency, whatever it moves, and its ports for the bytes, in rounds as well") {
  CompileOptions o;
  o.stages = stage_meshes({2});
  o.costs.intra_node = {1, 1e6};
  o.costs.memory_bytes_per_s = 1e15;  // adding takes no time
  o.costs.launch_s = 0;
  for (o.zero = 0; o.zero <= 3; ++o.zero) {
    const auto p = compile(graph(ops(), {}), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    CHECK(p->exchanges.size() >= 3);
    for (const auto& x : p->exchanges) {
      CAPTURE(x.name);
      CHECK(x.latency_s == doctest::Approx(1));
      // half of them each way
      CHECK(x.seconds == doctest::Approx(x.latency_s + static_cast<double>(x.bytes) / 2 / 1e6));
    }
  }
}

TEST_CASE("layouts follow layout_costs alone; what acts and exchanges take follows costs") {
  CompileOptions free, dear;
  free.stages = dear.stages = stage_meshes({1}, 2);
  free.costs.intra_node = {0, 1e15};
  dear.costs.intra_node = {1, 1e3};
  free.costs.launch_s = 1e-9;
  dear.costs.launch_s = 2;
  const auto made = [](const CompileOptions& o) {
    auto p = compile(graph(ops(), {}), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    return *std::move(p);
  };
  const Plan with_free = made(free), with_dear = made(dear);
  REQUIRE(with_free.tensors != with_dear.tensors);
  CompileOptions both = dear;
  both.layout_costs = free.costs;
  const Plan p = made(both);
  CHECK(p.tensors == with_free.tensors);
  CHECK(p.costs == dear.costs);
  REQUIRE(p.exchanges.size() == with_free.exchanges.size());
  int carried = 0;
  for (std::size_t x = 0; x < p.exchanges.size(); ++x) {
    CHECK(p.exchanges[x].moves == with_free.exchanges[x].moves);
    if (p.exchanges[x].bytes == 0) continue;
    ++carried;
    CHECK(p.exchanges[x].seconds >= 1);
  }
  CHECK(carried > 0);
  int acts = 0;
  for (const PlanActor& a : p.roles[0].actors) {
    if (a.kind != PlanActor::Kind::segment || a.cost_s == 0) continue;  // no kernel is launched
    ++acts;
    CHECK_MESSAGE(a.cost_s >= 2, a.name);
  }
  CHECK(acts > 0);
  both.layout_costs->launch_s = -1;
  const auto refused = compile(graph(ops(), {}), both);
  REQUIRE(!refused.ok());
  CHECK(refused.status().message().find("CompileOptions::layout_costs") != std::string::npos);
}
