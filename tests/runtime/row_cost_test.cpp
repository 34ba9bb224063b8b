// What rows cost, against the boxings that they stand for; gradient rows, against what the search has charged for them.
#include "runtime/compile/row_cost.h"

#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "kernels/ops.h"
#include "placement/collective.h"
#include "runtime/compile/deduce.h"
#include "runtime/compile/lowering.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

/// A second is a byte that a place sends, nothing else.
CostModel bytes_only() {
  CostModel costs;
  costs.flops_per_s = costs.memory_bytes_per_s = std::numeric_limits<double>::infinity();
  costs.launch_s = 0;
  costs.intra_node = costs.inter_node = {0, 1};
  return costs;
}

/// Values of one width, each made of the last one: by linears of a narrow or a wide middle, norms, sums with the value
/// before, and attention to a norm: six query heads that share one key-value head, too few of both for four places.
Graph random_graph(const kernels::OpSet& ops, unsigned seed, bool train) {
  std::mt19937 rng(seed);
  const auto draw = [&](int n) { return static_cast<std::int64_t>(rng() % static_cast<unsigned>(n)); };
  Graph g(ops);
  g.program("train", {4, 1});
  g.unit("all");
  const std::int64_t head = 64, heads = 6, width = head * heads, rows = 64 << draw(4);
  int params = 0;
  const auto linear = [&](Value x, std::int64_t from, std::int64_t to, const Attrs& units = {}) {
    return g.op("linear", {x, g.param("w" + std::to_string(params++), {to, from}, Init::normal(0.1f))}, units)[0];
  };
  const auto norm = [&](Value x) {
    const Value scale = g.param("n" + std::to_string(params++), {width}, Init::constant(1), false);
    return g.op("rmsnorm", {x, scale}, {{"eps", 1e-5}})[0];
  };
  const auto attention = [&](Value x) {
    const Value q = linear(x, width, width, {{"unit", width}, {"subunit", head}}),
                k = linear(x, width, head, {{"unit", head}}), v = linear(x, width, head, {{"unit", head}});
    const Value o = g.op("attention", {q, k, v}, {{"head_dim", head}})[0];
    return linear(o, width, width, {{"in_unit", width}, {"in_subunit", head}});
  };
  const Value in = g.actor("data", "input", {}, {{"x", {DType::f32, {1, rows, width}}, std::nullopt}})[0];
  const Value target = g.actor("data", "target", {}, {{"y", {DType::f32, {1, rows, width}}, std::nullopt}})[0];
  Value x = linear(in, width, width);
  for (auto left = 2 + draw(4); left > 0; --left) {
    const Value before = x;
    const std::int64_t middle = 32 << draw(5);
    switch (draw(3)) {
      case 0: x = linear(linear(x, width, middle), middle, width); break;
      case 1: x = norm(x); break;
      default: x = attention(norm(x));
    }
    if (draw(2)) x = g.op("add", {x, before})[0];
  }
  const Value loss = g.op("mse_loss", {x, target}, {{"scale", 1.0}})[0];
  if (train) g.minimize(loss, {});
  return g;
}

}  // namespace

TEST_CASE(
    "a boxing along an axis, inside the largest part that another axis leaves, costs the bytes that its plan sends "
    "there, uneven parts included") {
  const std::vector<Sbp> all = {Sbp::S(0), Sbp::S(1), Sbp::S(0, 3), Sbp::B(), Sbp::P()};
  const CostModel costs = bytes_only();
  int moved = 0;
  for (const std::int64_t n : {1, 2, 3, 4})
    for (const Sbp& before : {Sbp::B(), Sbp::S(0), Sbp::S(1), Sbp::S(1, 8)})
      for (const Sbp& from : all)
        for (const Sbp& to : all) {
          const Layout a{{26, 39}, DType::f32, Mesh::dense({{"before", 3}, {"x", n}}), {before, from}};
          Layout b = a;
          b.sbp[1] = to;
          // Between two splits a cost takes the parts for even; S -> P is no boxing of a model axis.
          if (to.is_partial() || (from.is_split() && to.is_split())) continue;
          CAPTURE(n);
          CAPTURE(to_string(a.sbp));
          CAPTURE(to_string(b.sbp));
          const TensorType part{a.dtype, part_of(a.shape, a.sbp, 1, a.mesh)};
          double sent = 0;  // by the places that have the first coordinate on the axis before
          Layout at = a;
          for (const Layout& next : lower_boxing(a, b)) {
            const auto step = plan_boxing(at, next);
            REQUIRE_MESSAGE(step.ok(), step.status().message());
            for (Rank r = 0; r < n; ++r) sent += static_cast<double>(step->sent_bytes(r, 4));
            at = next;
          }
          CHECK(RowCost(costs, n).boxing_s(from, to, part) * static_cast<double>(n) == doctest::Approx(sent));
          moved += sent > 0;
        }
  CHECK(moved > 30);
}

TEST_CASE("random graphs: gradient rows move no byte more than the search has charged with the forward rows") {
  const auto ops = kernels::standard_ops();
  int moved = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    const Graph g = random_graph(ops, seed, true), forward = random_graph(ops, seed, false);
    REQUIRE_MESSAGE(g.status().ok(), g.status().message());
    CompileOptions o;
    o.stages = stage_meshes({1}, 4);
    auto staged = assign_units(g, o);
    REQUIRE_MESSAGE(staged.ok(), staged.status().message());
    const auto found = deduce(g, staged->units, staged->plan);
    REQUIRE_MESSAGE(found.ok(), found.status().message());
    Plan bytes = staged->plan;
    bytes.costs = bytes_only();
    bytes.program_specs[0].microbatches = 1 << 30;  // the sums of parameters' gradients, once a step, are nothing
    const auto charged_for = [&](const Graph& graph) {
      const auto cost = deduce(graph, staged->units, bytes,
                               [&](std::int32_t node, std::size_t axis, const kernels::Signature& row) {
                                 return row == found->signatures[node][axis];
                               });
      REQUIRE_MESSAGE(cost.ok(), cost.status().message());
      return cost->cost.seconds;
    };
    const double charged = charged_for(g) - charged_for(forward);  // for the way back
    const auto low = lower(g, staged->units, staged->plan);
    REQUIRE_MESSAGE(low.ok(), low.status().message());
    double sent = 0;
    const auto layout = [&](std::int32_t t) {
      const PlanTensor& tensor = staged->plan.tensors[t];
      return Layout{tensor.shape, tensor.dtype, staged->plan.meshes[tensor.mesh], tensor.sbp};
    };
    for (const LoweredNode& n : low->nodes)
      if (n.kind == LoweredNode::Kind::boxing && n.backward) {
        const auto step = plan_boxing(layout(n.in[0]), layout(n.out[0]));
        REQUIRE_MESSAGE(step.ok(), step.status().message());
        sent += static_cast<double>(step->moved_bytes(4)) / 4;
      }
    CAPTURE(seed);
    CHECK(sent <= charged + 1);
    moved += sent > 0;
  }
  CHECK(moved > 100);
}
