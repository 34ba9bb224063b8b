#include <doctest/doctest.h>

#include "placement/tree.h"

using namespace troupe;

TEST_CASE("TR-1: whatever the owners, stack merges leave exactly the cover of their lanes") {
  for (std::int32_t leaves = 1; leaves <= 17; ++leaves)
    for (std::int32_t lo = 0; lo < leaves; ++lo)
      for (std::int32_t hi = lo + 1; hi <= leaves; ++hi) {
        const Term owned{lo, hi};
        std::vector<Term> stack;
        for (auto leaf = lo; leaf < hi; ++leaf) {
          const LanePush push = lane_push(owned, leaf, leaves);
          REQUIRE(push.slot == static_cast<int>(stack.size()));
          stack.push_back({leaf, leaf + 1});
          for (int m = 0; m < push.merges; ++m) {
            const Term right = stack.back();
            stack.pop_back();
            const Term parent{stack.back().lo, right.hi};
            const auto [a, b] = tree_children(parent);
            REQUIRE(a == stack.back());
            REQUIRE(b == right);
            REQUIRE(is_tree_node(parent, leaves));
            stack.back() = parent;
          }
        }
        REQUIRE(stack == tree_cover(owned, leaves));
      }
}

TEST_CASE("TR-2: an owner of L lanes holds at most log2(L) + 2 sums, twice the log when unaligned") {
  for (std::int32_t leaves = 1; leaves <= 64; ++leaves)
    for (std::int32_t lo = 0; lo < leaves; ++lo)
      for (std::int32_t hi = lo + 1; hi <= leaves; ++hi) {
        int log = 0;
        while ((2 << log) <= hi - lo) ++log;
        const bool aligned = lo % (2 << log) == 0;
        REQUIRE(lane_copies({lo, hi}, leaves) <= (aligned ? log : 2 * log) + 2);
      }
}

TEST_CASE("every microbatch belongs to one lane and every lane to one dp coordinate") {
  for (std::int64_t microbatches = 1; microbatches <= 20; ++microbatches)
    for (std::int32_t lanes = 1; lanes <= microbatches; ++lanes)
      for (std::int64_t dp = 1; dp <= lanes; ++dp) {
        std::vector<int> seen(microbatches, 0);
        for (std::int64_t i = 0; i < dp; ++i) {
          const Term own = lanes_of(dp, i, lanes);
          CHECK(own.hi > own.lo);
          for (auto lane = own.lo; lane < own.hi; ++lane) {
            CHECK(owner_of(lane, dp, lanes) == i);
            const Range r = microbatches_of(lane, lanes, microbatches);
            for (auto m = r.lo; m < r.hi; ++m) {
              ++seen[m];
              CHECK(lane_of(m, lanes, microbatches) == lane);
            }
          }
        }
        for (int s : seen) CHECK(s == 1);
      }
}
