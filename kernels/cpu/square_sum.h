// Sum of squares in double, in an order that depends on the length only.
#pragma once

#include <cstdint>

#include "kernels/cpu/counts.h"

namespace troupe::kernels {

/// Index i goes to accumulator i mod 8, in order of i; the eight combine as ((0+4)+(2+6)) + ((1+5)+(3+7)).
class SquareSum {
 public:
  /// Adds the next n values: at(i, w) gives i .. i + w - 1 of them (w <= 8) as a v8, zeros beyond. REQUIRES that n is a
  /// multiple of 8 in all calls but the last.
  template <class F>
  void add(std::int64_t n, F&& at) {
    using namespace simd;
    constexpr std::int64_t parts = 8 / wide;
    doubles acc[parts];
    std::memcpy(acc, acc_, sizeof acc);
    const auto add = [&](v8 v) __attribute__((always_inline)) {
      floats part[parts];
      std::memcpy(part, &v, sizeof part);
      for (std::int64_t k = 0; k < parts; ++k) {
        const doubles x = widen(part[k]);
        acc[k] += x * x;
      }
    };
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) add(at(i, std::int64_t{8}));
    if (i < n) add(at(i, n - i));
    std::memcpy(acc_, acc, sizeof acc);
  }
  double value() const {
    return ((acc_[0] + acc_[4]) + (acc_[2] + acc_[6])) + ((acc_[1] + acc_[5]) + (acc_[3] + acc_[7]));
  }

 private:
  double acc_[8] = {};
};

template <class F>
inline double square_sum(std::int64_t n, F&& at) {
  SquareSum sum;
  sum.add(n, at);
  return sum.value();
}

inline simd::v8 load8(const float* p, std::int64_t n) {
  simd::v8 v{};
  if (n == 8) std::memcpy(&v, p, sizeof v);
  else std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}

}  // namespace troupe::kernels
