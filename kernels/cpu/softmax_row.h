// One row of a softmax cross-entropy, forward and backward.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/simd.h"

namespace troupe::kernels {

/// -log softmax(x)[target]; *lse = log sum exp(x). A negative target costs nothing.
inline double softmax_row(const float* x, std::int64_t n, std::int32_t target, float* lse) {
  using namespace simd;
  v16 top = splat(-INFINITY);
  chunks(n, [&](std::int64_t i, std::int64_t w) {
    top = max(w == lanes ? load(x + i) : load_tail(x + i, w, -INFINITY), top);
  });
  const float m = max(top);
  const v16 shift = splat(m);
  v16 total[2] = {};
  chunks(n, [&](std::int64_t i, std::int64_t w) {
    total[i / lanes % 2] += exp((w == lanes ? load(x + i) : load_tail(x + i, w, -INFINITY)) - shift);
  });
  const double log_sum = std::log(static_cast<double>(sum(total[0] + total[1])));
  *lse = static_cast<float>(log_sum + m);
  return target < 0 ? 0.0 : log_sum + m - x[target];
}

/// dx = scale * (softmax(x) - onehot(target)); zeros for a negative target. May run in place.
inline void softmax_row_grad(const float* x, std::int64_t n, std::int32_t target, float lse, float scale, float* dx) {
  using namespace simd;
  const v16 shift = splat(lse), f = splat(target < 0 ? 0.0f : scale);
  map(n, dx, [=](v16 v) { return exp(v - shift) * f; }, x);
  if (target >= 0) dx[target] -= scale;
}

}  // namespace troupe::kernels
