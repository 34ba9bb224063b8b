// Which worker runs which microbatch when: plan data, and the same sums whatever it says.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "runtime/token_game.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Two stages of equal cost, twelve microbatches.
Plan two_stages(const std::vector<std::int64_t>& dp) {
  Shape_ s;
  s.layers = 2;
  s.microbatches = 12;
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.lanes = 12;
  o.stage_of_unit = {0, 0, 1, 1};
  const auto ops = kernels::standard_ops();
  auto p = compile(graph(ops, s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

double makespan(const Plan& p) {
  GameOptions o;
  o.forward_s = 1;
  o.backward_s = 2;
  const auto r = play(p, o);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  return r->makespan_s;
}

}  // namespace

TEST_CASE("every microbatch runs once on each stage, and all places of a job agree on one global order") {
  for (const auto& dp : std::vector<std::vector<std::int64_t>>{{1}, {3}, {1, 2}, {2, 1}, {3, 2}, {2, 5}, {1, 4, 3}}) {
    std::vector<std::vector<std::int32_t>> orders;
    const Plan p = [&] {
      Shape_ s;
      s.microbatches = 13;
      const auto ops = kernels::standard_ops();
      auto made = plan(ops, s, dp, 7);
      REQUIRE(made.ok());
      return *std::move(made);
    }();
    for (std::int32_t s = 0; s < p.stages; ++s) {
      std::set<std::int32_t> all;
      for (std::int64_t i = 0; i < p.dp_width(s); ++i) {
        orders.push_back(p.microbatches(0, s, i));
        all.insert(orders.back().begin(), orders.back().end());
      }
      CHECK(all.size() == 13);
    }
    // No two microbatches are in one order here and in the other there.
    for (const auto& a : orders)
      for (const auto& b : orders)
        for (std::size_t i = 0; i < a.size(); ++i)
          for (std::size_t j = i + 1; j < a.size(); ++j) {
            const auto x = std::find(b.begin(), b.end(), a[i]), y = std::find(b.begin(), b.end(), a[j]);
            if (x != b.end() && y != b.end()) CHECK(x < y);
          }
  }
}

TEST_CASE("equally wide stages run their microbatches in index order") {
  const Plan p = two_stages({2, 2});
  CHECK(p.microbatches(0, 0, 0) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
  CHECK(p.microbatches(0, 1, 1) == std::vector<std::int32_t>{6, 7, 8, 9, 10, 11});
}

TEST_CASE("a stage behind or before a wider one takes turns between its places, and none of them waits for the others") {
  for (const auto& dp : {std::vector<std::int64_t>{1, 2}, {2, 1}}) {
    const Plan p = two_stages(dp);
    const std::int32_t narrow = dp[0] == 1 ? 0 : 1;
    CHECK(p.microbatches(0, narrow, 0) == std::vector<std::int32_t>{0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11});
    // The narrow stage has 12 * 3 to do and is the bottleneck: little more than its own work and one way through
    // the other stage.
    CHECK(makespan(p) <= 12 * 3 + 4);
  }
  CHECK(makespan(two_stages({2, 2})) == doctest::Approx(7 * 3));
}
