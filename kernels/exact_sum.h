// Exact sums (DType::sum64): a gradient's terms, each rounded once to a multiple of 2^-exponent, added as int64.
// Integers have the same sum in any order and grouping: microbatches may be added at any place and in any order.
//
// REQUIRES of each term: |term| * 2^exponent < 2^term_bits_max. A larger term, or one that is not finite, leaves
// garbage in its sum: View::peak shows it. Sums wrap around mod 2^64. Exponents lie in [-1000, 1000].
#pragma once

#include <cstdint>
#include <span>

#include "devices/device.h"

namespace troupe::kernels {

/// A term becomes an integer in the mantissa of a double, which has room for 51 bits.
inline constexpr int term_bits_max = 50;

/// sums[i] = or += terms[i] * 2^exponent, to the nearest integer (ties to even). Exchanges call it: it raises no peak,
/// so the session does not learn of terms that are too large. The body of an op stores with put_terms() (op.h).
void add_terms(std::int64_t* sums, const float* terms, std::int64_t n, std::int32_t exponent, bool accumulate,
               Parallel& par);

/// into[i] += from[i].
void add_sums(std::int64_t* into, const std::int64_t* from, std::int64_t n, Parallel& par);

/// A parameter's gradient as norm and update read it.
struct Gradient {
  /// One array for each use of the parameter. They are added as integers, then rounded to double, scaled, rounded to
  /// float.
  std::span<const std::int64_t* const> sums;
  std::int32_t exponent = 0;
  const float* rounded = nullptr;  ///< instead of `sums`: f32 already
};
/// out[i] = element i of g.
void round_sums(float* out, const Gradient& g, std::int64_t n, Parallel& par);

}  // namespace troupe::kernels
