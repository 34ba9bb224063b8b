// Sixteen floats at a time, with GCC's vector extensions. Included only by files that are compiled with the options of
// kernels/cpu/*.cpp.
//
// NU-0 (kernels) by construction: loads and stores are unaligned; a tail is copied into a padded vector and takes
// the same path as the body; reductions run in a fixed order; multiply-adds are fused where `fma` is
// written and nowhere else (-ffp-contract=off), so body and tail round alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

namespace troupe::kernels::simd {

inline constexpr std::int64_t width = 16;
typedef float v16 __attribute__((vector_size(64)));
typedef std::int32_t i16 __attribute__((vector_size(64)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v16_unaligned __attribute__((vector_size(64), aligned(4), may_alias));

inline v16 load(const float* p) { return *reinterpret_cast<const v16_unaligned*>(p); }
inline void store(float* p, v16 v) { *reinterpret_cast<v16_unaligned*>(p) = v; }
inline v16 splat(float x) { return x - v16{}; }

/// Whether stream() may store here.
inline bool streams_to(const float* p) {
#if defined(__AVX512F__) || defined(__FMA__)
  return reinterpret_cast<std::uintptr_t>(p) % 64 == 0;
#else
  return (void)p, false;
#endif
}
/// A store past the caches, of what is not read soon: the line is not read first. Other threads see it after
/// end_of_streams(). REQUIRES: streams_to(p).
inline void stream(float* p, v16 v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(__FMA__)
  __m256 x[2];
  std::memcpy(x, &v, sizeof v);
  for (int h = 0; h < 2; ++h) _mm256_stream_ps(p + 8 * h, x[h]);
#else
  store(p, v);
#endif
}
inline void end_of_streams() {
#if defined(__AVX512F__) || defined(__FMA__)
  _mm_sfence();
#endif
}

/// The first n < 16 floats at p, `fill` beyond.
inline v16 load_tail(const float* p, std::int64_t n, float fill = 0) {
  v16 v = splat(fill);
  std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
inline void store_tail(float* p, v16 v, std::int64_t n) {
  std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}

/// a * b + c, rounded once.
inline v16 fma(v16 a, v16 b, v16 c) {
#if defined(__AVX512F__)
  return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  __m256 x[2], y[2], z[2];  // GCC makes sixteen scalar calls of the loop below
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
  std::memcpy(z, &c, sizeof c);
  for (int h = 0; h < 2; ++h) z[h] = _mm256_fmadd_ps(x[h], y[h], z[h]);
  std::memcpy(&c, z, sizeof c);
  return c;
#else
  for (int i = 0; i < width; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}
inline v16 sqrt(v16 x) {
  for (int i = 0; i < width; ++i) x[i] = std::sqrt(x[i]);
  return x;
}
inline v16 max(v16 a, v16 b) { return a > b ? a : b; }

/// v with its lanes moved down by `by` (cyclically).
template <int by>
inline v16 rotate(v16 v) {
  i16 index;
  for (int i = 0; i < width; ++i) index[i] = (i + by) % width;
  return __builtin_shuffle(v, index);
}
/// Lanes added as a fixed tree: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
inline float sum(v16 v) {
  v += rotate<8>(v);
  v += rotate<4>(v);
  v += rotate<2>(v);
  return v[0] + v[1];
}
/// The largest lane, in all lanes.
inline v16 max_everywhere(v16 v) {
  v = max(v, rotate<8>(v));
  v = max(v, rotate<4>(v));
  v = max(v, rotate<2>(v));
  return max(v, rotate<1>(v));
}
inline float max(v16 v) { return max_everywhere(v)[0]; }

/// x * 2^n for whole n in [-160, 160].
inline v16 scale_by_power(v16 x, v16 n) {
#if defined(__AVX512F__)
  return (v16)_mm512_maskz_scalef_ps(0xFFFF, (__m512)x, (__m512)n);
#else
  const i16 k = __builtin_convertvector(n, i16), half = k >> 1;  // two steps, so that neither overflows
  return x * (v16)((half + 127) << 23) * (v16)((k - half + 127) << 23);
#endif
}

/// e^x to about 2 ulp, with its limits: 0 below -104, inf above 88.8; NaN stays NaN.
/// Cody-Waite reduction and a degree-6 polynomial (Cephes).
inline v16 exp(v16 x) {
  const v16 above = x < -104.0f ? splat(-104.0f) : x, clamped = above > 89.0f ? splat(89.0f) : above;
  const v16 shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const v16 n = fma(clamped, splat(1.44269504088896341f), shift) - shift;
  v16 r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  v16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  return scale_by_power(fma(p, r * r, r) + 1.0f, n);
}

/// 1 / (1 + e^-x).
inline v16 sigmoid(v16 x) { return 1.0f / (1.0f + exp(-x)); }

/// Calls f(offset, count) for whole vectors and once for the tail (count < 16).
template <class F>
inline void chunks(std::int64_t n, F&& f) {
  std::int64_t i = 0;
  for (; i + width <= n; i += width) f(i, width);
  if (i < n) f(i, n - i);
}

/// out[i] = f(in[i]...) for i in [0, n): one formula for body and tail.
template <class F, class... In>
inline void map(std::int64_t n, float* out, F&& f, const In*... in) {
  std::int64_t i = 0;
  for (; i + width <= n; i += width) store(out + i, f(load(in + i)...));
  if (i < n) store_tail(out + i, f(load_tail(in + i, n - i)...), n - i);
}

/// Sum over [0, n) of f(in[i]...): four interleaved vector sums, then fixed trees. f(0...) must be 0.
template <class F, class... In>
inline float reduce(std::int64_t n, F&& f, const In*... in) {
  v16 s[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * width <= n; i += 4 * width) {
    s[0] += f(load(in + i)...);
    s[1] += f(load(in + i + width)...);
    s[2] += f(load(in + i + 2 * width)...);
    s[3] += f(load(in + i + 3 * width)...);
  }
  for (int k = 0; i + width <= n; i += width, ++k) s[k] += f(load(in + i)...);
  if (i < n) s[3] += f(load_tail(in + i, n - i)...);
  return sum((s[0] + s[1]) + (s[2] + s[3]));
}

}  // namespace troupe::kernels::simd
