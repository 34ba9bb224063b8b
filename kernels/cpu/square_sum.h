// Sum of squares in double, in an order that depends on the length only.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace troupe::kernels {

/// Index i goes to accumulator i mod 8, in order of i; the eight combine as ((0+4)+(2+6)) + ((1+5)+(3+7)).
/// `at(i, n)` gives the values i .. i + n - 1 (n <= 8) as a v8, zeros beyond.
template <class F>
inline double square_sum(std::int64_t n, F&& at) {
  using namespace simd;
  d8 acc{};
  const auto add = [&](v8 v) {
    const d8 x = __builtin_convertvector(v, d8);
    acc += x * x;
  };
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) add(at(i, std::int64_t{8}));
  if (i < n) add(at(i, n - i));
  return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

inline simd::v8 load8(const float* p, std::int64_t n) {
  simd::v8 v{};
  if (n == 8) std::memcpy(&v, p, sizeof v);
  else std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}

}  // namespace troupe::kernels
