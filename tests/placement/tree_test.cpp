#include <doctest/doctest.h>

#include "placement/tree.h"

using namespace troupe;

TEST_CASE("RT-1: the cover of any run of leaves is disjoint, whole, in order and of nodes, and no fewer nodes would do") {
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
