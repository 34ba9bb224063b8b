#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "placement/tree.h"

using namespace troupe;

namespace {

/// One microbatch per lane, in order.
LaneSchedule in_order(Term owned, std::int32_t leaves) {
  std::vector<std::int32_t> microbatches;
  for (auto leaf = owned.lo; leaf < owned.hi; ++leaf) microbatches.push_back(leaf);
  return lane_schedule(microbatches, leaves, leaves);
}

}  // namespace

TEST_CASE("TR-1: whatever the owners, the merges leave exactly the cover of their lanes, each a node of the tree") {
  for (std::int32_t leaves = 1; leaves <= 17; ++leaves)
    for (std::int32_t lo = 0; lo < leaves; ++lo)
      for (std::int32_t hi = lo + 1; hi <= leaves; ++hi) {
        const auto schedule = in_order({lo, hi}, leaves);
        std::map<std::int32_t, Term> copies;
        for (auto leaf = lo; leaf < hi; ++leaf) {
          const LaneAct& act = schedule.acts[leaf - lo];
          REQUIRE_FALSE(act.accumulate);
          REQUIRE(copies.emplace(act.copy, Term{leaf, leaf + 1}).second);
          for (const auto& [into, from] : act.merges) {
            const Term a = copies.at(into), b = copies.at(from);
            const Term parent{std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
            REQUIRE(is_tree_node(parent, leaves));
            const auto [left, right] = tree_children(parent);
            REQUIRE((left == a ? right == b : left == b && right == a));
            copies.erase(from);
            copies[into] = parent;
          }
        }
        std::vector<Term> held;
        for (const auto& [node, copy] : schedule.held) {
          REQUIRE(copies.at(copy) == node);
          held.push_back(node);
        }
        REQUIRE(held == tree_cover({lo, hi}, leaves));
        REQUIRE(held.size() == copies.size());
      }
}

TEST_CASE("TR-1: leaves that are brought in order add up to the root, node by node, in log2(leaves) copies") {
  for (std::int32_t leaves = 1; leaves <= 65; ++leaves) {
    CAPTURE(leaves);
    const auto schedule = fold_schedule(leaves);
    REQUIRE(static_cast<std::int32_t>(schedule.acts.size()) == leaves);
    std::map<std::int32_t, Term> copies;
    auto add = [&](std::int32_t into, Term right) {
      const Term left = copies.at(into), sum{left.lo, right.hi};
      REQUIRE(is_tree_node(sum, leaves));
      REQUIRE(tree_children(sum) == std::pair(left, right));
      copies[into] = sum;
    };
    for (std::int32_t leaf = 0; leaf < leaves; ++leaf) {
      const LaneAct& act = schedule.acts[leaf];
      REQUIRE(act.copy < schedule.copies);
      if (act.accumulate) add(act.copy, {leaf, leaf + 1});
      else REQUIRE(copies.emplace(act.copy, Term{leaf, leaf + 1}).second);
      for (const auto& [into, from] : act.merges) {
        const Term right = copies.at(from);
        copies.erase(from);
        add(into, right);
      }
    }
    REQUIRE(copies.size() == 1);
    CHECK(copies.at(0) == Term{0, leaves});
    std::int32_t log = 0;
    while (1 << log < leaves) ++log;
    CHECK(schedule.copies <= std::max(1, log));
    if (leaves == 1 << log) CHECK(schedule.copies == std::max(1, log));
  }
}

TEST_CASE("lane_schedule: the first of a lane begins a copy, later ones add, the last merges as the tree says") {
  // 8 microbatches in 4 lanes: lanes 0..3 in copies 0, 1, 1, 2 with merges after lanes 1 and 3.
  const auto schedule = lane_schedule({0, 1, 2, 3, 4, 5, 6, 7}, 4, 8);
  const int copy[] = {0, 0, 1, 1, 1, 1, 2, 2};
  for (int m = 0; m < 8; ++m) {
    CAPTURE(m);
    CHECK(schedule.acts[m].copy == copy[m]);
    CHECK(schedule.acts[m].accumulate == (m % 2 == 1));
  }
  CHECK(schedule.acts[3].merges == std::vector<std::pair<std::int32_t, std::int32_t>>{{0, 1}});
  CHECK(schedule.acts[7].merges == std::vector<std::pair<std::int32_t, std::int32_t>>{{1, 2}, {0, 1}});
  CHECK(schedule.copies == 3);
}

TEST_CASE("TR-2: an owner of L lanes holds at most log2(L) + 2 sums, twice the log when unaligned") {
  for (std::int32_t leaves = 1; leaves <= 64; ++leaves)
    for (std::int32_t lo = 0; lo < leaves; ++lo)
      for (std::int32_t hi = lo + 1; hi <= leaves; ++hi) {
        int log = 0;
        while ((2 << log) <= hi - lo) ++log;
        const bool aligned = lo % (2 << log) == 0;
        REQUIRE(in_order({lo, hi}, leaves).copies <= (aligned ? log : 2 * log) + 2);
      }
}

TEST_CASE("TR-2: taking turns between W runs of lanes takes at most W times the copies of one") {
  for (std::int32_t runs : {2, 3, 4, 8})
    for (std::int32_t each = 1; each <= 16; ++each) {
      std::vector<std::int32_t> turns;
      for (std::int32_t i = 0; i < each; ++i)
        for (std::int32_t r = 0; r < runs; ++r) turns.push_back(r * each + i);
      std::int32_t most = 0;
      for (std::int32_t r = 0; r < runs; ++r) most = std::max(most, in_order({r * each, (r + 1) * each}, runs * each).copies);
      const auto schedule = lane_schedule(turns, runs * each, runs * each);
      REQUIRE(schedule.copies <= runs * most);
      REQUIRE(schedule.held == std::vector<std::pair<Term, std::int32_t>>{{{0, runs * each}, 0}});
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
