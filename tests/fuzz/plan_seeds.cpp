#include "runtime/compile/compile.h"
#include "runtime/plan/plan_io.h"
#include "runtime/session/control.h"
#include "tests/fuzz/message_seeds.h"

namespace troupe::fuzz {

namespace {

using namespace troupe::runtime;

/// The smallest graph that trains: y = relu(x w), and what it is to be.
Graph small_graph(const kernels::OpSet& ops) {
  Graph g(ops);
  g.program("train", {2, 1});
  g.unit("a");
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 2}}}})[0];
  const Value h = g.op("relu", {g.op("linear", {x, g.param("w", {2, 2}, Init::normal(0.2f))})[0]})[0];
  g.unit("b");
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {1, 2}}}})[0];
  g.minimize(g.op("mse_loss", {h, t}, {{"scale", 0.5}})[0], kernels::AdamW{});
  return g;
}

}  // namespace

Expected<std::vector<Seed>> plan_seeds() {
  const kernels::OpSet ops = kernels::standard_ops();
  std::vector<Seed> seeds;
  for (const auto& dp : {std::vector<std::int64_t>{1}, {2}, {1, 1}}) {
    CompileOptions o;
    o.stages = stage_meshes(dp);
    o.zero = dp[0] == 2 ? 1 : 0;
    TROUPE_ASSIGN(const Plan plan, compile(small_graph(ops), o));
    Bytes bytes{std::byte{1}};
    for (const std::byte b : write_plan(plan)) bytes.push_back(b);
    seeds.push_back({"to_worker", "plan-" + std::to_string(seeds.size()), std::move(bytes)});
  }
  return seeds;
}

}  // namespace troupe::fuzz
