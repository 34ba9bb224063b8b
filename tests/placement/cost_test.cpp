// Costs along one axis against the boxings that they stand for.
#include "placement/cost.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace troupe;

TEST_CASE("the bytes charged for a boxing along an axis are those that its plan moves, an all-reduce in two halves") {
  const std::vector<Sbp> all = {Sbp::S(0), Sbp::S(1), Sbp::B(), Sbp::P()};
  for (std::int64_t n : {1, 2, 3, 4, 8})
    for (const Sbp& from : all)
      for (const Sbp& to : all) {
        const Layout a{{24, 48}, DType::f32, Mesh::dense({{"x", n}}), {from}};
        Layout b = a;
        b.sbp = {to};
        CAPTURE(n);
        CAPTURE(to_string(a.sbp));
        CAPTURE(to_string(b.sbp));
        if (from == to) continue;
        const double charged = axis_boxing_bytes(from, to, 24 * 48 * 4, n) * static_cast<double>(n);
        const auto whole = plan_boxing(a, b);
        REQUIRE(whole.ok());
        if (from.is_split() && to.is_partial() && n > 1) {
          CHECK(std::isinf(charged));
          continue;
        }
        double moved = 0;
        Layout at = a;
        for (const Layout& next : lower_boxing(a, b)) {
          const auto step = plan_boxing(at, next);
          REQUIRE(step.ok());
          moved += static_cast<double>(step->moved_bytes(4));
          at = next;
        }
        CHECK(charged == doctest::Approx(moved));
      }
}

TEST_CASE("costs: a measured op takes what it took, between sizes something in between, and beyond them the nearest rate") {
  CostModel model;
  model.flops_per_s = 1e9;
  model.memory_bytes_per_s = 1e9;
  model.kernels["gemm"] = {{1e6, 1e3, 4e-3}, {1e9, 1e6, 1.1}};   // a quarter of the full rate; nearly all of it
  for (const KernelTime& t : model.kernels["gemm"]) CHECK(model.kernel_s("gemm", t.flops, t.bytes) == doctest::Approx(t.seconds).epsilon(1e-6));
  const double between = model.kernel_s("gemm", 3e7, 3e4);
  CHECK(between > 3e7 / 1e9 * 1.1);
  CHECK(between < 3e7 / 1e9 * 4);
  CHECK(model.kernel_s("gemm", 1e15, 1e12) == doctest::Approx(1e6 * 1.1 * 2).epsilon(0.6));   // no cliff far outside
  CHECK(model.kernel_s("gelu", 1e9, 0) == model.kernel_s(1e9, 0));                            // never measured
  model.slow_kernels(2);
  CHECK(model.kernel_s("gemm", 1e6, 1e3) == doctest::Approx(8e-3).epsilon(1e-6));
}

TEST_CASE("costs: a link that differs is found in either order of its ranks") {
  CostModel model;
  model.odd_links = {{5, 2, {7.0, 8.0}}};
  CHECK(model.link(2, 5).latency_s == 7.0);
  CHECK(model.link(5, 2).latency_s == 7.0);
  CHECK(model.link(2, 4) == model.intra_node);
  CHECK(model.link(2, 9) == model.inter_node);
}

TEST_CASE("the slowest link of an axis is that of its worst pair of places, whichever way the ranks lie") {
  CostModel model;
  model.places_per_node = 4;
  model.intra_node = {1e-6, 8e9};
  model.inter_node = {20e-6, 1e9};
  const auto worst_pair = [&](const Mesh& mesh, std::size_t axis) {
    LinkCost worst{0, 1e99};
    for (std::int64_t a = 0; a < mesh.size(); ++a)
      for (std::int64_t b = a + 1; b < mesh.size(); ++b) {
        auto x = mesh.coord(a), y = mesh.coord(b);
        x[axis] = y[axis] = 0;
        if (x != y) continue;
        const LinkCost& link = model.link(mesh.ranks[a], mesh.ranks[b]);
        worst = {std::max(worst.latency_s, link.latency_s), std::min(worst.bytes_per_s, link.bytes_per_s)};
      }
    return worst;
  };
  for (const bool odd : {false, true}) {
    if (odd) model.odd_links = {{1, 5, {1e-3, 2e9}}, {0, 2, {2e-6, 5e8}}, {90, 91, {1, 1}}};
    for (const auto& axes : std::vector<std::vector<Axis>>{{{"tp", 2}, {"dp", 4}}, {{"tp", 4}, {"dp", 2}}, {{"tp", 2}, {"dp", 2}}, {{"cp", 3}, {"tp", 2}, {"dp", 2}}})
      for (const Rank first : {0, 4, 6})
        for (std::size_t axis = 0; axis < axes.size(); ++axis) {
          const Mesh mesh = Mesh::dense(axes, first);
          CAPTURE(to_string(mesh));
          CAPTURE(first);
          CAPTURE(axis);
          CHECK(model.slowest_link(mesh, axis) == worst_pair(mesh, axis));
        }
  }
  CHECK(model.slowest_link(Mesh::dense({{"tp", 1}}, 7), 0) == model.intra_node);
}
