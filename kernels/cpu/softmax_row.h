// One row of a softmax cross-entropy, forward and backward.
#pragma once

#include <cmath>
#include <cstdint>

#include "devices/base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/exact_math.h"

namespace troupe::kernels {

struct MaxAndSum {
  float max, sum;
};

/// The largest of x[0, n), and the sum of exp(x - max).
inline MaxAndSum max_and_sum(const float* x, std::int64_t n) {
  using namespace simd;
  const auto at = [=](std::int64_t i) {  // beyond n: -inf, which is no maximum and adds 0
    return i + width <= n ? load(x + i) : i < n ? load_tail(x + i, n - i, -INFINITY) : splat(-INFINITY);
  };
  v16 top = splat(-INFINITY);
  std::int64_t i = 0;
  for (; i + width <= n; i += width) top = max(load(x + i), top);
  if (i < n) top = max(at(i), top);
  top = max_everywhere(top);
  v16 even = {}, odd = {};
  for (i = 0; i + 2 * width <= n; i += 2 * width) {
    even += exp(load(x + i) - top);
    odd += exp(load(x + i + width) - top);
  }
  if (i < n) even += exp(at(i) - top);
  if (i + width < n) odd += exp(at(i + width) - top);
  return {top[0], sum(even + odd)};
}

/// -log softmax(x)[target], or 0 for a negative target; *lse = log sum exp(x). REQUIRES target < n (OpDef::check).
inline double softmax_row(const float* x, std::int64_t n, std::int32_t target, float* lse) {
  REQUIRE(target < n, target, n);
  const auto [m, sum] = max_and_sum(x, n);
  const double log_sum = exact::log(static_cast<double>(sum));
  *lse = static_cast<float>(log_sum + m);
  return target < 0 ? 0.0 : log_sum + m - x[target];
}

/// dx = scale * (softmax(x) - onehot(target)); zeros for a negative target. May run in place.
/// x may be a part of the row: elements [first, first + n).
inline void softmax_row_grad(const float* x, std::int64_t n, std::int32_t target, float lse, float scale, float* dx,
                             std::int64_t first = 0) {
  using namespace simd;
  const v16 shift = splat(lse), f = splat(target < 0 ? 0.0f : scale);
  map(
      n, dx, [=](v16 v) { return exp(v - shift) * f; }, x);
  if (target >= 0 && target >= first && target < first + n) dx[target - first] -= scale;
}

}  // namespace troupe::kernels
