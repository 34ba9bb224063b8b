// Logarithm, exponential, power, sine and cosine in double: the same bits on every machine, processor or GPU, whatever
// C library it has. Made of +, -, *, /, fma, comparisons and the bits of a number only; IEEE 754 says what each gives.
// No table, no branch: loops over them become vectors. tests/kernels/exact_math_test.cpp measures the errors.
//
// A compiler that contracts (rounds a * b + c once: GCC by default, nvcc without -fmad=false) changes no bit here: a
// product is a term of a sum only where it is exact; elsewhere fma is written. Functions added here keep to that.
// Options that break IEEE 754 (-ffast-math) are not for its callers. Which NaN a NaN is differs between machines.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#define TROUPE_EVERYWHERE __host__ __device__
#else
#define TROUPE_EVERYWHERE
#endif
// Files with instruction sets of their own must not share a copy that the linker picks.
#define TROUPE_EXACT TROUPE_EVERYWHERE __attribute__((always_inline)) inline

namespace troupe::kernels::exact {

/// hi + lo, where lo is a small part of hi.
struct Sum {
  double hi, lo;
};

namespace detail {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double to_integer = 0x1.8p52;  ///< added to |x| <= 2^51, it rounds x to an integer, which its low bits say

TROUPE_EXACT std::uint64_t bits_of(double x) { return __builtin_bit_cast(std::uint64_t, x); }
TROUPE_EXACT double of_bits(std::uint64_t bits) { return __builtin_bit_cast(double, bits); }
/// 2^n for a normal number.
TROUPE_EXACT double power_of_two(std::int64_t n) { return of_bits(static_cast<std::uint64_t>(n + 1023) << 52); }

/// a + b without error (Knuth).
TROUPE_EXACT Sum two_sum(double a, double b) {
  const double hi = a + b, part = hi - a;
  return {hi, (a - (hi - part)) + (b - part)};
}

/// log(x) with a relative error below 2^-63, and the limits of log(). x = 2^k m with m in [sqrt(1/2), sqrt(2)); with
/// s = (m - 1) / (m + 1), log(m) = 2 s + 2 s^3 / 3 + 2 s^5 / 5 + ..: up to s^25, the first two terms as sums.
TROUPE_EXACT Sum log_sum(double x) {
  using std::fma;
  const bool subnormal = x < 0x1p-1022;
  const std::uint64_t bits = bits_of(subnormal ? x * 0x1p54 : x);
  constexpr std::uint64_t bits_of_root = 0x3fe6a09e667f3bcd, bias = 1024;  // the root is sqrt(1/2)
  const std::uint64_t k_and_bias = (bits - bits_of_root + (bias << 52)) >> 52;
  const double m = of_bits(bits - (k_and_bias << 52) + (bias << 52));
  const double k = of_bits(0x4330000000000000 | k_and_bias) - (0x1p52 + bias) - (subnormal ? 54.0 : 0.0);
  // s + s_lo: the quotient, then what it leaves of the dividend.
  const double f = m - 1, d = m + 1, d_lo = m - (d - 1), inverse = 1 / d, s = f * inverse;
  const double s_lo = fma(-s, d_lo, fma(-s, d, f)) * inverse;
  const double z = s * s, z_lo = fma(s + s, s_lo, fma(s, s, -z));
  double p = 1.0 / 25;
  p = fma(p, z, 1.0 / 23);
  p = fma(p, z, 1.0 / 21);
  p = fma(p, z, 1.0 / 19);
  p = fma(p, z, 1.0 / 17);
  p = fma(p, z, 1.0 / 15);
  p = fma(p, z, 1.0 / 13);
  p = fma(p, z, 1.0 / 11);
  p = fma(p, z, 1.0 / 9);
  p = fma(p, z, 1.0 / 7);
  p = fma(p, z, 1.0 / 5);
  constexpr double third = 1.0 / 3, third_lo = 0x1.5555555555555p-56;
  const double c = fma(z, p, third), c_lo = fma(z, p, third - c) + third_lo;
  const double u = z * c, u_lo = fma(z, c, -u) + fma(z, c_lo, z_lo * c);
  // hi + lo = log(m) / 2 = s + s u
  const double hi = fma(s, u, s), lo = fma(s, u, s - hi) + (fma(s, u_lo, fma(s_lo, u, s_lo)));
  // log(2): 42 bits, of which k has an exact product, and the rest
  constexpr double log2 = 0x1.62e42fefa38p-1, log2_lo = 0x1.ef35793c7673p-45;
  const double sum = fma(k, log2, 2 * hi), sum_lo = fma(2.0, hi, fma(k, log2, -sum)) + fma(k, log2_lo, 2 * lo);
  const bool inside = (x > 0) & (x < infinity);
  const double limit = x > 0 ? x : x == 0 ? -infinity : nan;
  return {inside ? sum : limit, inside ? sum_lo : 0.0};
}

/// e^(hi + lo) with the limits of exp(), for |lo| < 2^-30. Less k log(2), |r| <= log(2) / 2: a Taylor series.
TROUPE_EXACT double exp_sum(double hi, double lo) {
  using std::fma;
  const double above = hi < -746.0 ? -746.0 : hi, x = above > 710.0 ? 710.0 : above;
  constexpr double log2 = 0x1.62e42fefa39efp-1, log2_lo = 0x1.abc9e3b39803fp-56;
  const double shifted = fma(x, 0x1.71547652b82fep0, to_integer), k = shifted - to_integer;
  const double first = fma(-k, log2, x), rest = fma(-k, log2_lo, lo);  // the first is exact
  const double r = first + rest, r_lo = rest - (r - first);
  double p = 1.0 / 6227020800;  // 1 / 13!
  p = fma(p, r, 1.0 / 479001600);
  p = fma(p, r, 1.0 / 39916800);
  p = fma(p, r, 1.0 / 3628800);
  p = fma(p, r, 1.0 / 362880);
  p = fma(p, r, 1.0 / 40320);
  p = fma(p, r, 1.0 / 5040);
  p = fma(p, r, 1.0 / 720);
  p = fma(p, r, 1.0 / 120);
  p = fma(p, r, 1.0 / 24);
  p = fma(p, r, 1.0 / 6);
  p = fma(p, r, 1.0 / 2);
  const double near = 1 + r, near_lo = r - (near - 1);
  const double y = near + fma(r * r, p, fma(r_lo, near, near_lo));
  // Two steps: neither factor overflows, and only the second rounds, where the result is subnormal.
  const auto n = static_cast<std::int64_t>(bits_of(shifted) - bits_of(to_integer)), half = n >> 1;
  return y * power_of_two(half) * power_of_two(n - half);
}

}  // namespace detail

/// Natural logarithm, to 0.51 ulp: of 0 it is -inf, of inf inf, of a negative number or NaN NaN.
TROUPE_EXACT double log(double x) {
  const Sum sum = detail::log_sum(x);
  return sum.hi + sum.lo;
}

/// e^x, to 0.7 ulp, to 1 ulp where it is subnormal: 0 below -745.2, inf above 709.8; NaN stays NaN.
TROUPE_EXACT double exp(double x) { return detail::exp_sum(x, 0); }

/// base^exponent for base >= 0 and a finite exponent, an integer or not, to 0.9 ulp, to 1 ulp where it is subnormal:
/// e^(exponent log(base)), with the exponent as a sum. x^0 = 1; 0^y is 0, for y < 0 inf. base < 0: NaN.
TROUPE_EXACT double pow(double base, double exponent) {
  const Sum log = detail::log_sum(base);
  const double hi = exponent * log.hi, lo = std::fma(exponent, log.lo, std::fma(exponent, log.hi, -hi));
  const bool inside = (hi > -800.0) & (hi < 800.0);
  const double power = detail::exp_sum(hi, inside ? lo : 0.0);
  return exponent == 0 ? 1.0 : power;
}

/// Sine and cosine, each to 0.8 ulp, for |x| <= 2^32; beyond it, and of inf and NaN, both are NaN.
TROUPE_EXACT void sin_cos(double x, double& sine, double& cosine) {
  using std::fma;
  using namespace detail;
  // x = n pi / 2 + r + r_lo, |r| < 0.786. pi / 2 is 53 + 21 + 21 + 53 bits; n has at most 32, so that its products with
  // the second and the third part are exact; so is x less the product with the first.
  constexpr double part1 = 0x1.921fb54442d18p0, part2 = 0x1.1a626p-54, part3 = 0x1.98a2ep-77,
                   part4 = 0x1.b839a252049c1p-104;
  const double shifted = fma(x, 0x1.45f306dc9c883p-1, to_integer), n = shifted - to_integer;
  const Sum a = two_sum(fma(-n, part1, x), -n * part2), b = two_sum(a.hi, -n * part3);
  const double rest = fma(-n, part4, a.lo + b.lo), r = b.hi + rest, r_lo = rest - (r - b.hi);
  // Taylor series; each ends below 2^-55 of its value.
  const double z = r * r, half = 0.5 * z, z_lo = fma(r, r, -z);
  double p = 1.0 / 355687428096000;  // 1 / 17!
  p = fma(p, z, -1.0 / 1307674368000);
  p = fma(p, z, 1.0 / 6227020800);
  p = fma(p, z, -1.0 / 39916800);
  p = fma(p, z, 1.0 / 362880);
  p = fma(p, z, -1.0 / 5040);
  p = fma(p, z, 1.0 / 120);
  p = fma(p, z, -1.0 / 6);
  const double of_sine = r + fma(r * z, p, fma(-half, r_lo, r_lo));
  double q = 1.0 / 20922789888000;  // 1 / 16!
  q = fma(q, z, -1.0 / 87178291200);
  q = fma(q, z, 1.0 / 479001600);
  q = fma(q, z, -1.0 / 3628800);
  q = fma(q, z, 1.0 / 40320);
  q = fma(q, z, -1.0 / 720);
  q = fma(q, z, 1.0 / 24);
  const double near = 1 - half, near_lo = (1 - near) - half;
  const double of_cosine = near + (near_lo + fma(z * z, q, -fma(r, r_lo, 0.5 * z_lo)));
  // Quarter turns: n mod 4 are the low bits of `shifted`.
  const std::uint64_t turns = bits_of(shifted), sine_sign = turns >> 1 << 63, cosine_sign = (turns + 1) >> 1 << 63;
  const bool odd = (turns & 1) != 0, inside = (x >= -0x1p32) & (x <= 0x1p32);
  const double sine_of_x = of_bits(bits_of(odd ? of_cosine : of_sine) ^ sine_sign);
  const double cosine_of_x = of_bits(bits_of(odd ? of_sine : of_cosine) ^ cosine_sign);
  const double with_zero = x == 0 ? x : sine_of_x;  // -0 stays -0
  sine = inside ? with_zero : nan;
  cosine = inside ? cosine_of_x : nan;
}

}  // namespace troupe::kernels::exact
