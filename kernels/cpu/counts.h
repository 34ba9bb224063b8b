// Between floats and the counts of exact sums, a register of doubles at a time. Included by kernels/cpu/*.cpp only.
#pragma once

#include "kernels/cpu/simd.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace troupe::kernels::simd {

// Vectors of 64 bytes would go through memory here on machines whose registers have 32.
#if defined(__AVX512F__)
inline constexpr std::int64_t wide = 8;
#else
inline constexpr std::int64_t wide = 4;
#endif
typedef float floats __attribute__((vector_size(4 * wide)));
typedef double doubles __attribute__((vector_size(8 * wide)));
typedef std::int64_t integers __attribute__((vector_size(8 * wide)));
// bits of int64: unsigned, because sums wrap around
typedef std::uint64_t counts __attribute__((vector_size(8 * wide)));
// bits of 2 * wide floats, without signs
typedef std::uint32_t magnitudes __attribute__((vector_size(8 * wide)));
typedef floats floats_unaligned __attribute__((aligned(4), may_alias));
typedef counts counts_unaligned __attribute__((aligned(8), may_alias));
typedef magnitudes magnitudes_unaligned __attribute__((aligned(4), may_alias));

inline floats load_floats(const float* p) { return *reinterpret_cast<const floats_unaligned*>(p); }
inline counts load_counts(const std::int64_t* p) { return *reinterpret_cast<const counts_unaligned*>(p); }
inline void store_floats(float* p, floats v) { *reinterpret_cast<floats_unaligned*>(p) = v; }
inline void store_counts(std::int64_t* p, counts v) { *reinterpret_cast<counts_unaligned*>(p) = v; }

/// 2^e for e in [-1000, 1000].
inline double power_of_two(std::int32_t e) { return std::ldexp(1.0, e); }

/// The same values. (GCC 12 makes three instructions of __builtin_convertvector here.)
inline doubles widen(floats x) {
#if defined(__AVX512F__)
  return (doubles)_mm512_maskz_cvtps_pd(0xFF, (__m256)x);  // all lanes: GCC 12 holds the unmasked one for uninitialised
#elif defined(__AVX__)
  return (doubles)_mm256_cvtps_pd((__m128)x);
#else
  return __builtin_convertvector(x, doubles);
#endif
}

/// x * scale to the nearest integer, ties to even, where that is below 2^51: the low bits of the mantissa of
/// x * scale + 1.5 * 2^52. `scale` is a power of two: the sum is the only rounding.
inline counts to_counts(floats x, double scale) {
  constexpr double middle = 0x1.8p52;
  const doubles wider = widen(x);
#if defined(__AVX512F__)
  const doubles d = (doubles)_mm512_fmadd_pd((__m512d)wider, _mm512_set1_pd(scale), _mm512_set1_pd(middle));
#else
  doubles d = {};
  for (int i = 0; i < wide; ++i) d[i] = __builtin_fma(wider[i], scale, middle);
#endif
  return (counts)d - (counts)(middle - doubles{});
}

/// Counts times `unit`, a power of two: rounded to double, then to float.
inline floats to_floats(counts x, double unit) {
#if defined(__AVX512DQ__)
  const doubles d = __builtin_convertvector((integers)x, doubles);
#else
  // The upper half of a count, its sign bit turned over, as the end of the mantissa of 2^84; the lower half as the end
  // of the mantissa of 2^52. Taking both offsets (and 2^63, for the sign bit) off the first is exact: only the last sum
  // rounds.
  const counts upper = (x >> 32) ^ 0x4530000080000000u, lower = (x & 0xFFFFFFFFu) | 0x4330000000000000u;
  const doubles d = ((doubles)upper - (0x1p84 + 0x1p63 + 0x1p52)) + (doubles)lower;
#endif
  return __builtin_convertvector(d * unit, floats);
}

/// The larger of `there` and |p[0]| .. |p[2 wide - 1]|, lane by lane, by their bits: NaN is above all.
inline magnitudes larger(magnitudes there, const float* p) {
  const magnitudes bits = *reinterpret_cast<const magnitudes_unaligned*>(p) & 0x7FFFFFFFu;
  return there > bits ? there : bits;
}

}  // namespace troupe::kernels::simd
