// Functions of kernels/exact_math.h: errors in ulp against the C library's functions in long double, limits, bits.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <numbers>

#include "devices/base/philox.h"
#include "kernels/exact_math.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

constexpr int count = 100'000;
constexpr double infinity = std::numeric_limits<double>::infinity(),
                 no_number = std::numeric_limits<double>::quiet_NaN();

/// Numbers that are the same everywhere.
struct Draws {
  std::uint64_t key, next = 0;
  std::uint64_t word() {
    const auto w = philox(key, next++, 0);
    return static_cast<std::uint64_t>(w[0]) << 32 | w[1];
  }
  double real(double from, double to) { return std::fma(to - from, static_cast<double>(word() >> 11) * 0x1p-53, from); }
  /// A positive finite number of any size, or 0.
  double any() {
    const std::uint64_t bits = word() >> 1;
    return std::bit_cast<double>(bits < 0x7ff0000000000000 ? bits : bits >> 12);
  }
};

/// |have - want| in units of the last place of `want`, which is finite.
double ulps(double have, long double want) {
  if (want == 0) return have == 0 ? 0 : infinity;
  const long double error = std::abs(have - want) / std::ldexp(1.0L, std::max(std::ilogb(want) - 52, -1074));
  return error < 1e6 ? static_cast<double>(error) : infinity;  // of a NaN, too
}

/// The largest error of f over `count` arguments that `draw` gives.
template <class Draw, class F>
double worst(std::uint64_t key, Draw draw, F error) {
  Draws draws{key};
  double most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, error(draw(draws)));
  return most;
}

double error_of_log(double x) { return ulps(exact::log(x), std::log(static_cast<long double>(x))); }
double error_of_exp(double x) { return ulps(exact::exp(x), std::exp(static_cast<long double>(x))); }
double error_of_sin_cos(double x) {
  double s, c;
  exact::sin_cos(x, s, c);
  return std::max(ulps(s, std::sin(static_cast<long double>(x))), ulps(c, std::cos(static_cast<long double>(x))));
}

struct Powers {
  double base, exponent;
};
double error_of_pow(Powers p) {
  return ulps(exact::pow(p.base, p.exponent),
              std::pow(static_cast<long double>(p.base), static_cast<long double>(p.exponent)));
}

bool same(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

/// A digest of values, any NaN as one.
struct Bits {
  std::uint64_t sum = 0;
  void add(double v) {
    sum = (sum ^ (v != v ? 1 : std::bit_cast<std::uint64_t>(v))) * 1099511628211u;
    sum ^= sum >> 29;
  }
};

}  // namespace

TEST_CASE("exact::log errs by 0.51 ulp at most") {
  CHECK(worst(
            1, [](Draws& d) { return d.any(); }, error_of_log) <= 0.51);
  CHECK(worst(
            2, [](Draws& d) { return d.real(0.4, 2.5); }, error_of_log) <= 0.51);
  const auto near_1 = [](Draws& d) { return 1 + std::ldexp(d.real(-1, 1), -static_cast<int>(d.word() % 54)); };
  CHECK(worst(3, near_1, error_of_log) <= 0.51);
  const auto subnormal = [](Draws& d) { return std::bit_cast<double>((d.word() >> 12 >> d.word() % 52) + 1); };
  CHECK(worst(4, subnormal, error_of_log) <= 0.51);
  const auto near_root = [](Draws& d) {
    return std::ldexp(std::numbers::sqrt2 + d.real(-1e-14, 1e-14), static_cast<int>(d.word() % 2000) - 1000);
  };
  CHECK(worst(5, near_root, error_of_log) <= 0.51);
  for (const double x : {DBL_MIN, DBL_MAX, DBL_TRUE_MIN}) CHECK(error_of_log(x) <= 0.51);
  CHECK(same(exact::log(1), 0));
  CHECK(exact::log(0.0) == -infinity);
  CHECK(exact::log(-0.0) == -infinity);
  CHECK(exact::log(infinity) == infinity);
  for (const double x : {-1.0, -DBL_TRUE_MIN, -infinity, no_number}) CHECK(std::isnan(exact::log(x)));
}

TEST_CASE("exact::exp errs by 0.7 ulp at most, by 1 where its result is subnormal") {
  CHECK(worst(
            1, [](Draws& d) { return d.real(-1, 1); }, error_of_exp) <= 0.7);
  CHECK(worst(
            2, [](Draws& d) { return d.real(-708, 709.78); }, error_of_exp) <= 0.7);
  CHECK(worst(
            3, [](Draws& d) { return d.real(-745.1, -708); }, error_of_exp) <= 1);
  const auto halfway = [](Draws& d) {  // between two multiples of log(2)
    return (static_cast<double>(d.word() % 1400) - 699.5) * std::numbers::ln2 + d.real(-1e-9, 1e-9);
  };
  CHECK(worst(4, halfway, error_of_exp) <= 0.7);
  const auto tiny = [](Draws& d) { return std::ldexp(d.real(-1, 1), -static_cast<int>(d.word() % 1100)); };
  CHECK(worst(5, tiny, error_of_exp) <= 0.7);
  CHECK(exact::exp(0.0) == 1);
  CHECK(exact::exp(709.782712893384) <= DBL_MAX);
  for (const double x : {709.79, 710.0, 1e300, infinity}) CHECK(exact::exp(x) == infinity);
  CHECK(exact::exp(-745.13) == DBL_TRUE_MIN);
  for (const double x : {-745.2, -746.0, -1e300, -infinity}) CHECK(same(exact::exp(x), 0));
  CHECK(std::isnan(exact::exp(no_number)));
}

TEST_CASE("exact::pow errs by 0.9 ulp at most, by 1 where its result is subnormal") {
  CHECK(worst(
            1,
            [](Draws& d) {
              return Powers{d.real(1, 1e7), -d.real(0, 1)};
            },
            error_of_pow) <= 0.9);       // rope's
  const auto of_a_step = [](Draws& d) {  // beta^step
    const double beta = 1 - std::ldexp(d.real(0.5, 1), -static_cast<int>(d.word() % 20));
    return Powers{beta, std::floor(std::min(d.real(0, 1 << 22), -700 / std::log(beta)))};
  };
  CHECK(worst(2, of_a_step, error_of_pow) <= 0.9);
  const auto of_any = [](double from, double to) {
    return [=](Draws& d) {
      const double base = std::exp(d.real(-700, 700));
      return Powers{base, d.real(from, to) / std::log(base)};
    };
  };
  CHECK(worst(3, of_any(-708, 709.7), error_of_pow) <= 0.9);
  CHECK(worst(4, of_any(-745, -708), error_of_pow) <= 1);
  for (const double x : {0.0, 0.5, 1.0, infinity, no_number}) CHECK(exact::pow(x, 0) == 1);
  CHECK(exact::pow(1, -1e300) == 1);
  CHECK(same(exact::pow(0, 3), 0));
  CHECK(exact::pow(0, -0.5) == infinity);
  CHECK(exact::pow(infinity, 2) == infinity);
  CHECK(same(exact::pow(infinity, -2), 0));
  CHECK(same(exact::pow(0.9, 1e300), 0));
  CHECK(exact::pow(0.9, -1e300) == infinity);
  CHECK(std::isnan(exact::pow(-2, 2)));
  CHECK(std::isnan(exact::pow(no_number, 2)));
  CHECK(std::isnan(exact::pow(2, no_number)));
}

TEST_CASE("exact::sin_cos errs by 0.8 ulp at most up to 2^32, close to zeros too, and is NaN beyond") {
  CHECK(worst(
            1, [](Draws& d) { return d.real(0, 2 * std::numbers::pi); }, error_of_sin_cos) <= 0.8);
  CHECK(worst(
            2, [](Draws& d) { return d.real(-1e7, 1e7); }, error_of_sin_cos) <= 0.8);
  CHECK(worst(
            3, [](Draws& d) { return d.real(-0x1p32, 0x1p32); }, error_of_sin_cos) <= 0.8);
  const auto tiny = [](Draws& d) { return std::ldexp(d.real(-1, 1), -static_cast<int>(d.word() % 1070)); };
  CHECK(worst(4, tiny, error_of_sin_cos) <= 0.8);
  const auto near_eighths = [](Draws& d) {  // the double nearest to a multiple of pi / 4, and its neighbours
    const std::uint64_t n = d.word() >> 32 >> d.word() % 32;
    const double x = static_cast<double>(n) * (std::numbers::pi / 4);
    return std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) + d.word() % 3);
  };
  CHECK(worst(5, near_eighths, error_of_sin_cos) <= 0.8);
  double s, c;
  for (const double x : {0.0, -0.0}) {
    exact::sin_cos(x, s, c);
    CHECK(same(s, x));
    CHECK(c == 1);
  }
  for (const double x : {0x1p32, -0x1p32}) CHECK(error_of_sin_cos(x) <= 0.8);
  for (const double x : {std::nextafter(0x1p32, infinity), -1e300, infinity, -infinity, no_number}) {
    exact::sin_cos(x, s, c);
    CHECK(std::isnan(s));
    CHECK(std::isnan(c));
  }
}

TEST_CASE("functions of exact_math.h have these bits on every machine") {
  Draws draws{9};
  Bits log, exp, pow, sine, cosine;
  for (int i = 0; i < count; ++i) {
    log.add(exact::log(i % 2 ? draws.any() : draws.real(0, 2)));
    exp.add(exact::exp(draws.real(-760, 720)));
    const double base = draws.real(0, 2), exponent = draws.real(-900, 900);
    pow.add(exact::pow(base, exponent));
    double s, c;
    exact::sin_cos(i % 2 ? draws.real(0, 8) : draws.real(-0x1.1p32, 0x1.1p32), s, c);
    sine.add(s), cosine.add(c);
  }
  CHECK(log.sum == 11383766321864106802u);
  CHECK(exp.sum == 16855892654125861202u);
  CHECK(pow.sum == 13365971484634828511u);
  CHECK(sine.sum == 13529444374853345985u);
  CHECK(cosine.sum == 17360503482903832555u);
}
