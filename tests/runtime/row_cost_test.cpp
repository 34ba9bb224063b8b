// What rows cost, against the boxings that they stand for; gradient rows, against what the search has charged for them.
#include "runtime/compile/row_cost.h"

#include <doctest/doctest.h>

#include <limits>

#include "placement/collective.h"
#include "runtime/compile/deduce.h"
#include "runtime/compile/lowering.h"
#include "tests/runtime/row_graph.h"

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
    const Graph g = row_graph(ops, seed), forward = row_graph(ops, seed, {false});
    REQUIRE_MESSAGE(g.status().ok(), g.status().message());
    CompileOptions o;
    o.stages = stage_meshes({1}, 4);
    auto staged = assign_units(g, o);
    REQUIRE_MESSAGE(staged.ok(), staged.status().message());
    const auto found = deduce(g, *staged);
    REQUIRE_MESSAGE(found.ok(), found.status().message());
    Staged bytes = *staged;
    bytes.layout_costs = bytes_only();
    bytes.plan.programs[0].spec.microbatches = 1 << 30;  // the sums of parameters' gradients, once a step, are nothing
    const auto charged_for = [&](const Graph& graph) {
      const auto cost = deduce(graph, bytes, [&](std::int32_t node, std::size_t axis, const kernels::Signature& row) {
        return row == found->signatures[node][axis];
      });
      REQUIRE_MESSAGE(cost.ok(), cost.status().message());
      return cost->cost.seconds;
    };
    const double charged = charged_for(g) - charged_for(forward);  // for the way back
    const auto low = lower(g, *staged);
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
