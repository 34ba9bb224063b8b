#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "fixture.h"
#include "kernels/exact_sum.h"
#include "kernels/optimizer.h"
#include "kernels/square_sums.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

using Sums = std::vector<std::int64_t>;

/// Magnitudes from 2^-60 to 2^top, some of them halves of units of 2^-e.
std::vector<float> terms_of_all_sizes(std::size_t n, int top, int e, Random& random) {
  std::uniform_real_distribution<float> mantissa(-1, 1), power(-60, static_cast<float>(top));
  std::uniform_int_distribution<int> half(-4000, 4000);
  std::vector<float> list(n);
  for (std::size_t i = 0; i < n; ++i)
    list[i] = i % 3 ? std::ldexp(mantissa(random), static_cast<int>(power(random)))
                    : std::ldexp(static_cast<float>(half(random)) + 0.5f, -e);
  return list;
}

/// Every magnitude, both ends, and what is a tie between doubles or between floats.
Sums sums_of_all_sizes(std::size_t n, Random& random) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(),
                         least = std::numeric_limits<std::int64_t>::min();
  Sums list = {0,
               1,
               -1,
               most,
               least,
               most - 1,
               least + 1,
               (1ll << 53) + 1,
               -(1ll << 53) - 1,
               (1ll << 53) + 3,
               (1ll << 24) + 1,
               (1ll << 32) - 1,
               1ll << 32,
               -(1ll << 32),
               (1ll << 62) + (1ll << 38),
               (1ll << 62) + (1ll << 38) + 1,
               0xFFFFFFFFll,
               1ll << 31};
  std::uniform_int_distribution<std::int64_t> any(least, most);
  std::uniform_int_distribution<int> shift(0, 63);
  while (list.size() < n) list.push_back(any(random) >> shift(random));
  return list;
}

}  // namespace

TEST_CASE("add_terms rounds each term once, to the nearest unit, ties to even") {
  Random random(1);
  OneThread one;
  TwoThreads two;
  for (const std::int32_t e : {-20, 0, 7, 36, 60}) {
    CAPTURE(e);
    auto terms = terms_of_all_sizes(40000, term_bits_max - e, e, random);
    terms[1] = std::nextafter(std::ldexp(1.0f, term_bits_max - e), 0.0f);
    terms[2] = -terms[1];
    Sums expected;
    for (const float x : terms) expected.push_back(std::llrint(std::ldexp(static_cast<double>(x), e)));
    const auto n = static_cast<std::int64_t>(terms.size());
    Sums sums(terms.size(), -1), twice(terms.size());
    add_terms(sums.data(), terms.data(), n, e, false, one);
    REQUIRE(sums == expected);
    add_terms(sums.data(), terms.data(), n, e, true, two);
    std::transform(expected.begin(), expected.end(), twice.begin(), [](std::int64_t x) { return 2 * x; });
    REQUIRE(sums == twice);
  }
  CHECK(std::llrint(0.5) == 0);  // the mode that llrint rounds in is the one that is meant
  CHECK(std::llrint(1.5) == 2);
}

TEST_CASE("add_terms, add_sums, round_sums: any length from any address, and nothing beside it is written") {
  Random random(2);
  OneThread one;
  const auto terms = terms_of_all_sizes(64, 20, 30, random);
  for (std::size_t n = 0; n <= 40; ++n)
    for (std::size_t shift = 0; shift < 8; ++shift) {
      CAPTURE(n);
      CAPTURE(shift);
      const auto count = static_cast<std::int64_t>(n);
      Sums sums(64, 77), expected = sums;
      for (std::size_t i = 0; i < n; ++i)
        expected[shift + i] += std::llrint(std::ldexp(double{terms[shift + 1 + i]}, 30));
      add_terms(sums.data() + shift, terms.data() + shift + 1, count, 30, true, one);
      REQUIRE(sums == expected);
      for (std::size_t i = 0; i < n; ++i) expected[shift + i] += expected[shift + 3 + i];
      Sums from(sums.begin() + static_cast<std::ptrdiff_t>(shift) + 3, sums.end());
      add_sums(sums.data() + shift, from.data(), count, one);
      REQUIRE(std::equal(sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(shift + n), expected.begin()));
      REQUIRE(std::equal(sums.begin() + static_cast<std::ptrdiff_t>(shift + n), sums.end(),
                         expected.begin() + static_cast<std::ptrdiff_t>(shift + n)));
      std::vector<float> floats(64, 5), rounded = floats;
      for (std::size_t i = 0; i < n; ++i)
        rounded[shift + i] = static_cast<float>(std::ldexp(static_cast<double>(sums[shift + i]), -30));
      const std::int64_t* use = sums.data() + shift;
      round_sums(floats.data() + shift, {.sums = {&use, 1}, .exponent = 30}, count, one);
      REQUIRE(floats == rounded);
    }
}

TEST_CASE("sums have the same bits in every order and grouping, and are exact but for half a unit a term") {
  Random random(3);
  OneThread one;
  constexpr std::size_t n = 301, count = 50;
  constexpr std::int32_t e = 36;
  std::vector<std::vector<float>> terms;
  for (std::size_t t = 0; t < count; ++t) terms.push_back(terms_of_all_sizes(n, term_bits_max - e - 1, e, random));
  Sums first(n);
  for (const auto& t : terms) add_terms(first.data(), t.data(), n, e, true, one);
  for (std::size_t i = 0; i < n; ++i) {
    __int128 exact = 0;  // in units of 2^-(e + 40); what is below is lost, once a term
    for (const auto& t : terms) exact += static_cast<__int128>(std::ldexp(static_cast<long double>(t[i]), e + 40));
    const auto error = static_cast<long double>(exact - (static_cast<__int128>(first[i]) << 40));
    REQUIRE(std::abs(error) <= std::ldexp(static_cast<long double>(count), 39) + static_cast<long double>(count));
  }
  for (int round = 0; round < 20; ++round) {
    std::shuffle(terms.begin(), terms.end(), random);
    Sums total(n), group(n);
    for (std::size_t t = 0; t < count; ++t) {
      const bool begins = t == 0 || random() % 3 == 0;
      if (begins) add_sums(total.data(), group.data(), n, one);
      add_terms(group.data(), terms[t].data(), n, e, !begins, one);
    }
    add_sums(total.data(), group.data(), n, one);
    REQUIRE(total == first);
  }
  Sums most(n, std::numeric_limits<std::int64_t>::max());  // wraps around
  add_sums(most.data(), Sums(n, 1).data(), n, one);
  CHECK(most == Sums(n, std::numeric_limits<std::int64_t>::min()));
}

TEST_CASE("round_sums rounds any int64 to double, then to float") {
  Random random(4);
  TwoThreads two;
  const auto a = sums_of_all_sizes(40001, random), b = sums_of_all_sizes(40001, random);
  const std::int64_t* uses[2] = {a.data(), b.data()};
  for (const std::int32_t e : {-40, 0, 36, 150, 190})
    for (const std::size_t count : {1, 2}) {
      CAPTURE(e);
      CAPTURE(count);
      std::vector<float> out(a.size(), -1), expected;
      for (std::size_t i = 0; i < a.size(); ++i) {
        const auto sum = static_cast<std::uint64_t>(a[i]) + (count == 2 ? static_cast<std::uint64_t>(b[i]) : 0);
        expected.push_back(static_cast<float>(std::ldexp(static_cast<double>(static_cast<std::int64_t>(sum)), -e)));
      }
      round_sums(out.data(), {.sums = {uses, count}, .exponent = e}, static_cast<std::int64_t>(a.size()), two);
      REQUIRE(std::equal(out.begin(), out.end(), expected.begin(), [](float x, float y) {
        return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
      }));
      std::vector<float> copy(a.size());
      round_sums(copy.data(), {.rounded = out.data()}, static_cast<std::int64_t>(a.size()), two);
      REQUIRE(copy == out);
    }
}

TEST_CASE("norm and update of exact sums have the bits of those of the rounded gradient") {
  Random random(5);
  OneThread one;
  TwoThreads two;
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{3, 5}, {70, 333}, {5, 1024}, {9, 4099}}) {
    CAPTURE(rows);
    CAPTURE(cols);
    const auto n = rows * cols;
    const auto size = static_cast<std::size_t>(n);
    const Sums a = sums_of_all_sizes(size + 8, random), b = sums_of_all_sizes(size + 8, random);
    for (const std::size_t count : {1, 2}) {
      const std::int64_t* uses[2] = {a.data() + 3, b.data() + 1};
      const Gradient sums{.sums = {uses, count}, .exponent = 50};
      std::vector<float> g(size);
      round_sums(g.data(), sums, n, one);
      const Gradient rounded{.rounded = g.data()};
      std::vector<double> squares(static_cast<std::size_t>(rows)), expected_squares(squares.size());
      row_square_sums(sums, rows, cols, squares.data(), two);
      row_square_sums(rounded, rows, cols, expected_squares.data(), one);
      CHECK(squares == expected_squares);
      std::vector<float> p(size, 0.5f), m(size, 0.1f), v(size, 0.2f), p1 = p, m1 = m, v1 = v;
      const AdamW hyper{.grad_scale = 0.3, .step = 3};
      adamw_update(p.data(), sums, m.data(), v.data(), n, hyper, two);
      adamw_update(p1.data(), rounded, m1.data(), v1.data(), n, hyper, one);
      CHECK(p == p1);
      CHECK(m == m1);
      CHECK(v == v1);
      CHECK(p != std::vector<float>(size, 0.5f));
    }
  }
}

TEST_CASE(
    "an update that writes elsewhere gives the bits of one in place, wherever vectors and streaming stores begin") {
  TwoThreads two;
  const std::int64_t n = 100'003;
  const auto size = static_cast<std::size_t>(n + 64);
  std::vector<float> g(size), p(size), m(size), v(size);
  for (std::size_t i = 0; i < size; ++i) {
    g[i] = 0.01f * static_cast<float>(i % 97) - 0.4f;
    p[i] = 0.001f * static_cast<float>(i % 31), m[i] = 0.002f * static_cast<float>(i % 17), v[i] = 0.003f;
  }
  const AdamW hyper{.grad_scale = 0.3, .step = 3};
  const Gradient gradient{.rounded = g.data()};
  auto p1 = p, m1 = m, v1 = v;
  adamw_update(p1.data(), gradient, m1.data(), v1.data(), n, hyper, two);
  for (std::size_t shift = 0; shift < 32; ++shift) {  // half of a cache line's floats, and beyond
    CAPTURE(shift);
    std::vector<float> p2(size, 7), m2(size, 7), v2(size, 7);
    adamw_update({p.data(), m.data(), v.data()}, {p2.data() + shift, m2.data() + shift, v2.data() + shift}, gradient, n,
                 hyper, two);
    for (const auto& [to, expected] : {std::pair(&p2, &p1), {&m2, &m1}, {&v2, &v1}}) {
      CHECK(std::equal(to->begin() + static_cast<std::ptrdiff_t>(shift),
                       to->begin() + static_cast<std::ptrdiff_t>(shift) + n, expected->begin()));
      CHECK(std::count(to->begin(), to->begin() + static_cast<std::ptrdiff_t>(shift), 7.0f) ==
            static_cast<std::ptrdiff_t>(shift));
      CHECK(std::count(to->begin() + static_cast<std::ptrdiff_t>(shift) + n, to->end(), 7.0f) ==
            static_cast<std::ptrdiff_t>(size - shift) - n);
    }
  }
}

TEST_CASE("add_terms scales by any exponent: those of tiny gradients are beyond what f32 can say") {
  OneThread one;
  for (const int e : {-300, -90, -2, 128, 150, 186}) {
    CAPTURE(e);
    std::vector<float> terms;
    for (int i = 0; i < 37; ++i)
      terms.push_back(std::ldexp(1.0f + static_cast<float>(i) / 64, std::clamp(40 - e, -149, 120)));
    Sums sums(terms.size());
    add_terms(sums.data(), terms.data(), std::ssize(terms), e, false, one);
    for (std::size_t i = 0; i < terms.size(); ++i)
      REQUIRE(sums[i] == std::llrint(std::ldexp(static_cast<double>(terms[i]), e)));
  }
}
