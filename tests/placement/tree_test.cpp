#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "placement/tree.h"

using namespace troupe;

namespace {

/// As RT-1 (covers) and RFC 6962 say it.
double sum_of(const std::vector<double>& leaves, Term node) {
  if (node.hi - node.lo == 1) return leaves[static_cast<std::size_t>(node.lo)];
  std::int32_t half = 1;
  while (2 * half < node.hi - node.lo) half *= 2;
  return sum_of(leaves, {node.lo, node.lo + half}) + sum_of(leaves, {node.lo + half, node.hi});
}

}  // namespace

TEST_CASE(
    "RT-1: the sums of the nodes of any runs of leaves, added along the tree, have the bits of one holder's sum") {
  std::mt19937 random(3);
  int parts = 0;
  for (std::int32_t leaves = 1; leaves <= 70; ++leaves)
    for (int draw = 0; draw < 20; ++draw) {
      std::vector<double> values;
      for (std::int32_t i = 0; i < leaves; ++i)
        values.push_back(std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 40) - 20));
      REQUIRE(tree_sum(values) == sum_of(values, {0, leaves}));
      std::vector<Term> nodes;
      std::vector<double> sums;
      for (std::int32_t lo = 0; lo < leaves;) {
        const std::int32_t hi = std::min<std::int32_t>(leaves, lo + 1 + static_cast<std::int32_t>(random() % 12));
        for (const Term& node : tree_cover({lo, hi}, leaves)) {
          nodes.push_back(node);
          sums.push_back(tree_sum(std::span(values).subspan(static_cast<std::size_t>(node.lo),
                                                            static_cast<std::size_t>(node.hi - node.lo))));
          REQUIRE(sums.back() == sum_of(values, node));
        }
        lo = hi;
      }
      const auto sum = TreeSum::over(nodes, leaves);
      REQUIRE_MESSAGE(sum.ok(), sum.status().message());
      REQUIRE(sum->nodes() == nodes.size());
      REQUIRE((*sum)(sums.data()) == sum_of(values, {0, leaves}));
      parts += nodes.size() > 1;
      // One node less, twice, in another order, or of another tree is no cover.
      const auto i = static_cast<std::ptrdiff_t>(random() % nodes.size());
      auto less = nodes, twice = nodes, turned = nodes;
      less.erase(less.begin() + i);
      twice.insert(twice.begin() + i, nodes[static_cast<std::size_t>(i)]);
      std::swap(turned.front(), turned.back());
      CHECK_FALSE(TreeSum::over(less, leaves).ok());
      CHECK_FALSE(TreeSum::over(twice, leaves).ok());
      CHECK(TreeSum::over(turned, leaves).ok() == (nodes.size() == 1));
      CHECK_FALSE(TreeSum::over(nodes, leaves + 1).ok());
    }
  CHECK(parts > 1000);
  const auto none = TreeSum::over({}, 0);
  REQUIRE(none.ok());
  CHECK((*none)(nullptr) == 0);
  CHECK(tree_sum({}) == 0);
}

TEST_CASE(
    "RT-1: the cover of any run of leaves is disjoint, whole, in order and of nodes, and no fewer nodes would do") {
  for (std::int32_t leaves = 1; leaves <= 33; ++leaves)
    for (std::int32_t lo = 0; lo < leaves; ++lo)
      for (std::int32_t hi = lo + 1; hi <= leaves; ++hi) {
        const auto cover = tree_cover({lo, hi}, leaves);
        std::int32_t at = lo;
        for (const Term& node : cover) {
          REQUIRE(node.lo == at);
          REQUIRE(is_tree_node(node, leaves));
          at = node.hi;
        }
        REQUIRE(at == hi);
        // Two neighbours that are siblings would be one node.
        for (std::size_t i = 1; i < cover.size(); ++i) {
          const Term both{cover[i - 1].lo, cover[i].hi};
          if (is_tree_node(both, leaves)) REQUIRE_FALSE(tree_children(both) == std::pair(cover[i - 1], cover[i]));
        }
      }
  CHECK(tree_cover({3, 3}, 8).empty());
}

TEST_CASE("a node's children meet at the largest power of two below its size, and are nodes; other runs are none") {
  for (std::int32_t leaves = 1; leaves <= 33; ++leaves) {
    std::vector<Term> nodes{{0, leaves}};
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Term node = nodes[i];
      REQUIRE(is_tree_node(node, leaves));
      if (node.hi - node.lo == 1) continue;
      const auto [left, right] = tree_children(node);
      CHECK(left.lo == node.lo);
      CHECK(right.hi == node.hi);
      CHECK(left.hi == right.lo);
      const std::int32_t size = left.hi - left.lo;
      CHECK((size & (size - 1)) == 0);
      CHECK(size < node.hi - node.lo);
      CHECK(2 * size >= node.hi - node.lo);
      nodes.push_back(left);
      nodes.push_back(right);
    }
    CHECK(static_cast<std::int32_t>(nodes.size()) == 2 * leaves - 1);
    std::int32_t found = 0;
    for (std::int32_t lo = 0; lo < leaves; ++lo)
      for (std::int32_t hi = lo + 1; hi <= leaves; ++hi) found += is_tree_node({lo, hi}, leaves) ? 1 : 0;
    CHECK(found == 2 * leaves - 1);
  }
}

TEST_CASE("a tree of as many leaves as there can be is split like any other") {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max(), half = 1 << 30;
  const auto children = tree_children({0, most});
  CHECK(children.first.hi == half);
  CHECK(children.second.lo == half);
  CHECK(children.second.hi == most);
  const auto cover = tree_cover({1, most}, most);  // [1, 2), [2, 4), ... [2^29, 2^30), and the right half
  REQUIRE(cover.size() == 31);
  CHECK(cover.back().lo == half);
}
