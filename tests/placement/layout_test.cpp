#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "tests/placement/random_layout.h"

using namespace troupe;

TEST_CASE("mesh: row-major positions, slices, names") {
  const Mesh m = Mesh::dense({{"dp", 2}, {"tp", 3}}, 10);
  CHECK(m.size() == 6);
  CHECK(m.coord(4) == std::vector<std::int64_t>{1, 1});
  CHECK(m.position({1, 1}) == 4);
  CHECK(m.find(14) == 4);
  CHECK(m.find(9) == -1);
  CHECK(m.axis("tp") == 1);
  CHECK(m.axis_size("pp") == 1);
  CHECK(m.slice(0, 1).ranks == std::vector<Rank>{13, 14, 15});
  CHECK(m.slice(1, 2).ranks == std::vector<Rank>{12, 15});
  CHECK(to_string(m) == "{dp: 2, tp: 3}");
}

TEST_CASE("mesh: copies, and layouts on it, share one table of ranks; a copy that is edited gets its own") {
  const Mesh m = Mesh::dense({{"dp", 1000}});
  Mesh copy = m;
  const Layout layout{{1000}, DType::f32, m, {Sbp::S(0)}};
  CHECK(&copy.ranks.table() == &m.ranks.table());
  CHECK(&layout.mesh.ranks.table() == &m.ranks.table());
  copy.ranks.edit()[0] = 7;
  CHECK(copy.ranks[0] == 7);
  CHECK(m.ranks[0] == 0);
}

TEST_CASE("mesh: every rank is found where it is, in any order of ranks; those in strides without a search") {
  for (unsigned seed = 1; seed <= 3000; ++seed) {
    std::mt19937 random(seed);
    Mesh m = random_mesh(random, static_cast<Rank>(random() % 9));
    for (std::int64_t p = 0; p < m.size(); ++p) REQUIRE(m.find(m.ranks[p]) == p);
    for (const Rank absent : {-1, 8 + 64}) REQUIRE(m.find(absent) == -1);
    // The same places in strides: the first axis varies fastest.
    Mesh strided = m;
    for (std::int64_t p = 0; p < m.size(); ++p) {
      const auto c = m.coord(p);
      std::int64_t rank = 0;
      for (std::size_t a = c.size(); a-- > 0;) rank = rank * m.axes[a].size + c[a];
      strided.ranks.edit()[static_cast<std::size_t>(p)] = static_cast<Rank>(5 + rank);
    }
    for (std::int64_t p = 0; p < m.size(); ++p) REQUIRE(strided.guess(strided.ranks[p]) == p);
    // A group has all places that differ on the free axes only.
    std::vector<bool> free;
    for (std::size_t a = 0; a < m.axes.size(); ++a) free.push_back(random() % 2 == 0);
    const std::int64_t at = static_cast<std::int64_t>(random()) % m.size();
    std::vector<std::int64_t> expected;
    for (std::int64_t p = 0; p < m.size(); ++p) {
      bool in = true;
      for (std::size_t a = 0; a < free.size(); ++a) in &= free[a] || m.coord(p)[a] == m.coord(at)[a];
      if (in) expected.push_back(p);
    }
    REQUIRE(m.group(at, free) == expected);
  }
}

TEST_CASE("LY-1 (whole terms): each replica set of each term holds every element exactly once") {
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    std::mt19937 random(seed);
    const Shape shape = random_shape(random);
    const Layout l = random_layout(random, shape, random_mesh(random));
    INFO("seed " << seed << ": " << to_string(l));
    REQUIRE(l.validate().ok());
    // A replica set: the places with equal coordinates on the axes that are not split.
    std::map<std::vector<std::int64_t>, std::int64_t> elements_of;
    std::map<std::vector<std::int64_t>, std::vector<Extent>> extents_of;
    for (std::int64_t p = 0; p < l.mesh.size(); ++p) {
      auto key = l.mesh.coord(p);
      for (std::size_t a = 0; a < l.sbp.size(); ++a)
        if (l.sbp[a].is_split()) key[a] = -1;
      const Extent e = l.extent_at(p);
      for (const auto& other : extents_of[key]) REQUIRE(intersect(e, other).empty());
      extents_of[key].push_back(e);
      elements_of[key] += e.elements();
    }
    for (const auto& [key, n] : elements_of) REQUIRE(n == elements(shape));
  }
}

TEST_CASE("LY-2 (nested splits): nested splits of one dim divide in axis order") {
  const Layout l({10}, DType::f32, Mesh::dense({{"a", 2}, {"b", 3}}), {Sbp::S(0), Sbp::S(0)});
  std::vector<Range> parts;
  for (std::int64_t p = 0; p < 6; ++p) parts.push_back(l.extent_at(p).dims[0]);
  CHECK(parts == std::vector<Range>{{0, 2}, {2, 4}, {4, 5}, {5, 7}, {7, 9}, {9, 10}});
}

TEST_CASE("LY-3 (intersection): holdings_intersecting gives exactly the holdings that overlap") {
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    std::mt19937 random(seed);
    const Shape shape = random_shape(random);
    const Layout l = random_layout(random, shape, random_mesh(random));
    Extent asked = Extent::whole(shape);
    for (auto& r : asked.dims) {
      const auto lo = static_cast<std::int64_t>(random() % (r.size() + 1));
      r = {lo, lo + static_cast<std::int64_t>(random() % (r.hi - lo + 1))};
    }
    INFO("seed " << seed << ": " << to_string(l) << " asked for " << to_string(asked));
    std::vector<Holding> expected;
    for (std::int64_t p = 0; p < l.mesh.size(); ++p)
      if (const Holding h = l.holding_at(p); !intersect(h.extent, asked).empty()) expected.push_back(h);
    REQUIRE(l.holdings_intersecting(asked) == expected);
  }
}

TEST_CASE("terms are numbered along the P axes, in axis order") {
  const Layout l({4}, DType::f32, Mesh::dense({{"a", 2}, {"b", 2}, {"c", 3}}), {Sbp::P(), Sbp::B(), Sbp::P()});
  CHECK(l.terms() == 6);
  CHECK(l.holding_at(l.mesh.position({1, 0, 2})).term == Term{5, 6});
  CHECK(l.holding_at(l.mesh.position({1, 1, 2})).term == Term{5, 6});
  CHECK(l.holding_at(l.mesh.position({0, 1, 1})).term == Term{1, 2});
  CHECK(l.bytes_at(0) == 16);
  CHECK(to_string(l) == "[4] f32 {a: 2, b: 2, c: 3} (P, B, P)");
}

TEST_CASE("a layout that does not fit its mesh or shape says why") {
  const Mesh mesh = Mesh::dense({{"dp", 2}});
  CHECK(Layout({4}, DType::f32, mesh, {}).validate().message() ==
        "a layout on mesh {dp: 2} needs 1 SBPs, one per axis, and has 0");
  CHECK(Layout({4}, DType::f32, mesh, {Sbp::S(1)}).validate().message() == "S(1) on axis dp does not fit shape [4]");
}
