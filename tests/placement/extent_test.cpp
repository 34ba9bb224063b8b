#include <doctest/doctest.h>

#include <functional>
#include <random>

#include "placement/extent.h"

using namespace troupe;

namespace {

Extent random_within(const Extent& whole, std::mt19937& random) {
  Extent e = whole;
  for (auto& r : e.dims) {
    const auto n = r.size();
    const auto lo = r.lo + static_cast<std::int64_t>(random() % n);
    r = {lo, lo + 1 + static_cast<std::int64_t>(random() % (r.hi - lo))};
  }
  return e;
}

/// Calls f(index) for every element of an extent, row-major.
void for_each_element(const Extent& e, const std::function<void(const std::vector<std::int64_t>&)>& f) {
  std::vector<std::int64_t> index;
  std::function<void(std::size_t)> walk = [&](std::size_t d) {
    if (d == e.dims.size()) return f(index);
    for (auto i = e.dims[d].lo; i < e.dims[d].hi; ++i) {
      index.push_back(i);
      walk(d + 1);
      index.pop_back();
    }
  };
  walk(0);
}

Extent point(const std::vector<std::int64_t>& index) {
  Extent e;
  for (auto i : index) e.dims.push_back({i, i + 1});
  return e;
}

}  // namespace

TEST_CASE("extents: size, overlap, containment, text") {
  const Extent e{{{0, 4}, {128, 256}}};
  CHECK(e.elements() == 512);
  CHECK(e.shape() == Shape{4, 128});
  CHECK(to_string(e) == "[0:4, 128:256]");
  CHECK(Extent::whole({2, 3}) == Extent{{{0, 2}, {0, 3}}});
  CHECK(intersect(e, {{{3, 9}, {0, 130}}}) == Extent{{{3, 4}, {128, 130}}});
  CHECK(intersect(e, {{{4, 9}, {0, 130}}}).empty());  // neighbours do not overlap
  CHECK(e.contains({{{1, 2}, {128, 256}}}));
  CHECK_FALSE(e.contains({{{1, 5}, {128, 256}}}));
  CHECK(e.contains({{{9, 9}, {0, 1}}}));  // nothing is inside anything
}

TEST_CASE("a scalar is one element; a dim of length 0 is none") {
  const Extent scalar = Extent::whole({});
  CHECK_FALSE(scalar.empty());
  CHECK(scalar.elements() == 1);
  CHECK(intersect(scalar, scalar) == scalar);
  CHECK(Extent::whole({3, 0}).empty());
  float from = 2, to = 0;
  copy_extent(scalar, &from, scalar, &to, scalar, sizeof from);
  CHECK(to == 2);
}

TEST_CASE("copy_extent moves exactly the elements of the part, between any two buffers that have it") {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    CAPTURE(round);
    Extent part;
    const auto dims = 1 + random() % 4;
    for (unsigned d = 0; d < dims; ++d) part.dims.push_back({0, 1 + static_cast<std::int64_t>(random() % 5)});
    part = random_within(part, random);
    auto around = [&] {
      Extent e = part;
      for (auto& r : e.dims)
        r = {r.lo - static_cast<std::int64_t>(random() % 3), r.hi + static_cast<std::int64_t>(random() % 3)};
      return e;
    };
    const Extent a = around(), b = around();
    std::vector<std::int32_t> from(a.elements()), to(b.elements(), -1);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::int32_t>(i);
    copy_extent(part, from.data(), a, to.data(), b, sizeof(std::int32_t));
    for_each_element(b, [&](const std::vector<std::int64_t>& index) {
      const Extent p = point(index);
      const std::int32_t expected = part.contains(p) ? from[offset_in(p, a)] : -1;
      REQUIRE(to[offset_in(p, b)] == expected);
    });
  }
}

TEST_CASE("contiguous_in says whether a part is one run, as for_each_run finds out") {
  std::mt19937 random(2);
  int contiguous = 0;
  for (int round = 0; round < 2000; ++round) {
    Extent whole;
    const auto dims = random() % 4;
    for (unsigned d = 0; d < dims; ++d) whole.dims.push_back({0, 1 + static_cast<std::int64_t>(random() % 3)});
    const Extent part = random_within(whole, random);
    std::vector<std::int64_t> offsets;
    for_each_element(
        part, [&](const std::vector<std::int64_t>& index) { offsets.push_back(offset_in(point(index), whole)); });
    const bool one_run = offsets.back() - offsets.front() + 1 == static_cast<std::int64_t>(offsets.size());
    INFO(to_string(part) << " in " << to_string(whole));
    REQUIRE(contiguous_in(part, whole) == one_run);
    contiguous += one_run;
  }
  CHECK(contiguous > 200);
}
