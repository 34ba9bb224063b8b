// The functions and sums of kernels/cpu/simd.h, one thread's share of each: the same operations in the same order.
#pragma once

#include "kernels/cuda/prelude.cuh"

namespace troupe::kernels::cuda {

/// x * 2^n for whole n in [-160, 160].
TROUPE_DEVICE float scale_by_power(float x, float n) {
  const int k = static_cast<int>(n), half = k >> 1;  // two steps, so that neither overflows
  return x * float_of((half + 127) << 23) * float_of((k - half + 127) << 23);
}

/// simd::exp.
TROUPE_DEVICE float exp(float x) {
  const float above = x < -104.0f ? -104.0f : x, clamped = above < 89.0f ? above : 89.0f;  // NaN: 89
  const float shift = 12582912.0f;
  const float n = fmaf(clamped, 1.44269504088896341f, shift) - shift;
  float r = fmaf(n, -0.693359375f, clamped);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  const float power = scale_by_power(fmaf(p, r * r, r) + 1.0f, n);
  return x != x ? x : power;  // no branch: loads of later elements go ahead
}

/// 1 / (1 + e^-x).
TROUPE_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

/// simd::max: the first where it is greater.
TROUPE_DEVICE float max_of(float a, float b) { return a > b ? a : b; }

/// simd::sum of a vector whose lane i is with lanes i and i + 16 of the warp: in every lane.
TROUPE_DEVICE float sum_of_sixteen(float v) {
  v += shuffle_xor(v, 8);
  v += shuffle_xor(v, 4);
  v += shuffle_xor(v, 2);
  return v + shuffle_xor(v, 1);
}

/// simd::reduce by one warp: the sum over [0, n) of f(i), in every lane. All lanes call it.
template <class F>
TROUPE_DEVICE float warp_reduce(std::int64_t n, F&& f) {
  const int lane = thread_x() % warp_size, column = lane % 16, half = lane / 16;
  // vectors half and half + 2 of the four
  float first = 0, second = 0;
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    first += f(i + lane);
    second += f(i + 32 + lane);
  }
  const std::int64_t whole = (n - i) / 16, tail = i + whole * 16 + column;
  if (half < whole) first += f(i + lane);
  if (half + 2 < whole) second += f(i + 32 + lane);
  if (half == 1 && tail < n) second += f(tail);  // the tail goes to the fourth
  const float low = first + shuffle_xor(first, 16), high = second + shuffle_xor(second, 16);
  return sum_of_sixteen(low + high);
}

/// max_and_sum (kernels/cpu/softmax_row.h) by one warp: the largest x(i) for i in [0, n), and the sum of exp(x(i) -
/// max); in every lane. All lanes call it.
template <class F>
TROUPE_DEVICE void warp_max_and_sum(std::int64_t n, F&& x, float& max, float& sum) {
  const int lane = thread_x() % warp_size;
  float top = -INFINITY;
#pragma unroll 8
  for (std::int64_t i = lane; i < n; i += warp_size) top = max_of(x(i), top);
  for (int bits = 16; bits > 0; bits /= 2) top = max_of(top, shuffle_xor(top, bits));
  float part = 0;  // lanes 0 to 15: `even`, the others: `odd`
#pragma unroll 8
  for (std::int64_t i = lane; i < n; i += warp_size) part += exp(x(i) - top);
  max = top;
  sum = sum_of_sixteen(part + shuffle_xor(part, 16));
}

}  // namespace troupe::kernels::cuda
