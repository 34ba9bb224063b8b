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
  check(refusal({Mesh::dense({{"tp", 2}, {"dp", 1}}), Mesh::dense({{"tp", 1}, {"dp", 2}}, 2)}),
        {"stage 1", "other axes than stage 0", "width of dp only"});
  check(refusal({Mesh::dense({{"dp", 1}}), Mesh::dense({{"tp", 1}, {"dp", 1}}, 1)}),
        {"stage 1", "other axes than stage 0"});
  check(refusal({Mesh::dense({{"dp", 2}, {"tp", 2}})}), {"stage 0", "axis behind dp"});
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
  // slots are aligned, and have exponents
  CHECK(writers_s(costs, 1) == doctest::Approx(bytes / 1e6).epsilon(0.02));
  // half of it each, at half the rate
  CHECK(writers_s(costs, 2) == doctest::Approx(writers_s(costs, 1)));
  costs.places_per_node = 1;
  CHECK(writers_s(costs, 2) == doctest::Approx(writers_s(costs, 1) / 2));
  costs.disk_bytes_per_s = 1e7;
  CHECK(writers_s(costs, 2) == doctest::Approx(bytes / 2 / 1e7).epsilon(0.02));
}

TEST_CASE(
    "an exchange of two places takes a latency for each tensor that it moves, and its links for the bytes, in rounds "
    "as well") {
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
      CHECK(x.latency_s == doctest::Approx(x.moves.size()));
      // half of them each way
      CHECK(x.seconds == doctest::Approx(x.latency_s + static_cast<double>(x.bytes) / 2 / 1e6));
    }
  }
}
