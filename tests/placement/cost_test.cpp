// Costs along one axis against the boxings that they stand for.
#include "placement/cost.h"
#include "placement/boxing.h"
#include "placement/collective.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

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

TEST_CASE(
    "an exchange along an axis takes a latency for each other place and a hand-over each to and from it, beside its "
    "bytes; "
    "an all-reduce of more than two places is two, with one hand-over between them") {
  const Sbp b = Sbp::B(), p = Sbp::P(), s = Sbp::S(0);
  const auto seconds = [](const Sbp& from, const Sbp& to, std::int64_t n) {
    return axis_boxing_seconds(from, to, 96, n, {100, 8, 2}, 1000);  // 1.6 bytes per second, through interface and link
  };
  CHECK(seconds(s, b, 4) == doctest::Approx(3 * 100 + 2 * 1000 + 72 / 1.6));
  CHECK(seconds(s, Sbp::S(1), 4) == doctest::Approx(3 * 100 + 2 * 1000 + 18 / 1.6));
  CHECK(seconds(p, s, 4) == doctest::Approx(3 * 100 + 2 * 1000 + 72 / 1.6));
  CHECK(seconds(p, b, 4) == doctest::Approx(2 * 3 * 100 + 3 * 1000 + 144 / 1.6));
  CHECK(seconds(p, b, 2) == doctest::Approx(100 + 2 * 1000 + 96 / 1.6));
  for (const auto& [from, to, n] : {std::tuple(b, s, 4), {s, s, 4}, {p, b, 1}}) CHECK(seconds(from, to, n) == 0);
  CHECK(axis_boxing_seconds(s, b, 96, 2, {100, 8, 2}) == doctest::Approx(100 + 48 / 1.6));
}

TEST_CASE(
    "costs: a measured op takes what it took, between sizes something in between, and beyond them the nearest rate") {
  CostModel model;
  model.flops_per_s = 1e9;
  model.memory_bytes_per_s = 1e9;
  model.kernels["gemm"] = {{1e6, 1e3, 4e-3}, {1e9, 1e6, 1.1}};  // a quarter of the full rate; nearly all of it
  for (const KernelTime& t : model.kernels["gemm"])
    CHECK(model.kernel_s("gemm", t.flops, t.bytes) == doctest::Approx(t.seconds).epsilon(1e-6));
  const double between = model.kernel_s("gemm", 3e7, 3e4);
  CHECK(between > 3e7 / 1e9 * 1.1);
  CHECK(between < 3e7 / 1e9 * 4);
  // no cliff far outside
  CHECK(model.kernel_s("gemm", 1e15, 1e12) == doctest::Approx(1e6 * 1.1 * 2).epsilon(0.6));
  CHECK(model.kernel_s("gelu", 1e9, 0) == model.kernel_s(1e9, 0));  // never measured
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

TEST_CASE("costs: the nodes of ranks are those that are named, else they have equally many ranks") {
  CostModel model;
  model.places_per_node = 2;
  CHECK(model.on_one_node(0, 1));
  CHECK_FALSE(model.on_one_node(1, 2));
  CHECK(model.most_on_node(5) == 2);
  model.nodes = {4, 4, 4, 1};
  CHECK(model.on_one_node(0, 2));
  CHECK_FALSE(model.on_one_node(2, 3));
  CHECK(model.link(2, 0) == model.intra_node);
  CHECK(model.link(2, 3) == model.inter_node);
  CHECK(model.most_on_node(4) == 3);
}

TEST_CASE("costs: a message that its receiver asks for first takes longer") {
  LinkCost link{1e-3, 1e9};
  link.rendezvous_s = 5e-3;
  CHECK(link.delivery_s(LinkCost::eager_bytes) == 1e-3);
  CHECK(link.delivery_s(LinkCost::eager_bytes + 1) == 6e-3);
}

TEST_CASE("costs that no machine can have are refused with the member's name and value; infinite rates are accepted") {
  const std::pair<std::function<void(CostModel&)>, std::string> wrong[] = {
      {[](CostModel& m) { m.flops_per_s = 0; }, "flops_per_s is 0"},
      {[](CostModel& m) { m.memory_bytes_per_s = -1; }, "memory_bytes_per_s is -1"},
      {[](CostModel& m) { m.launch_s = std::numeric_limits<double>::infinity(); }, "launch_s is inf"},
      {[](CostModel& m) { m.handover_s = -1; }, "handover_s is -1"},
      {[](CostModel& m) { m.intra_node.link_bytes_per_s = 0; }, "intra_node.link_bytes_per_s is 0"},
      {[](CostModel& m) { m.intra_node.bytes_per_s = 0; }, "intra_node.bytes_per_s is 0"},
      {[](CostModel& m) { m.inter_node.latency_s = -2; }, "inter_node.latency_s is -2"},
      {[](CostModel& m) {
         m.odd_links.push_back({1, 2, {0, 0}});
       },
       "odd_links (ranks 1 and 2).bytes_per_s is 0"},
      {[](CostModel& m) {
         m.odd_links.push_back({-1, 2, {}});
       },
       "a link is between two ranks"},
      {[](CostModel& m) {
         m.odd_links.push_back({3, 3, {}});
       },
       "a link is between two ranks"},
      {[](CostModel& m) { m.places_per_node = 0; }, "places_per_node is 0"},
      {[](CostModel& m) {
         m.nodes = {0, -1};
       },
       "nodes: that of rank 1 is -1"},
      {[](CostModel& m) { m.inter_node.rendezvous_s = -1; }, "inter_node.rendezvous_s is -1"},
      {[](CostModel& m) { m.disk_bytes_per_s = std::nan(""); }, "disk_bytes_per_s is nan"},
      {[](CostModel& m) {
         m.kernels["gemm"].push_back({1, 1, -1});
       },
       "'gemm': seconds is -1"},
      {[](CostModel& m) {
         m.kernels["gemm"].push_back({0, 0, 1});
       },
       "'gemm' has 0"},
      {[](CostModel& m) {
         m.flops_per_s = std::numeric_limits<double>::infinity();
         m.kernels["gemm"].push_back({64, 0, 1e-6});  // infinitely slower than that: no other call has a time
       },
       "'gemm' takes no time"}};
  for (const auto& one : wrong) {
    CostModel model;
    CHECK(model.validate().ok());
    one.first(model);
    const std::string message = model.validate().message();
    CHECK_MESSAGE(message.find(one.second) != std::string::npos, "'" << one.second << "' is not in: " << message);
  }
  CostModel fast;
  fast.flops_per_s = fast.intra_node.bytes_per_s = std::numeric_limits<double>::infinity();
  CHECK(fast.validate().ok());
  fast.kernels["gemm"].push_back({64, 64, 1e-6});
  CHECK(fast.validate().ok());
  CHECK(std::isfinite(fast.kernel_s("gemm", 1e6, 1e6)));
}
