// Pieces of a matrix product, shared by gemm.cpp and attention.cpp: packing into panels, and a tile of C
// (12 x 32: 24 vector accumulators) held in registers while k runs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd.h"

namespace troupe::kernels::simd {

inline constexpr std::int64_t panel_rows = 12, panel_cols = 32;

#if defined(__FMA__) && !defined(__AVX512F__)
/// Four columns of up to sixteen rows: lane r of out[k] is src[r * ld + k], zero from `rows` on. Rows r and r + 4 are
/// loaded into one vector, so that only quarters are left to be transposed.
[[gnu::always_inline]] inline void load_columns(const float* src, std::int64_t ld, std::int64_t rows, v16 (&out)[4]) {
#pragma GCC unroll 2
  for (std::int64_t h = 0; h < 2; ++h) {
    const auto row = [&](std::int64_t r) __attribute__((always_inline)) {
      return r < rows ? _mm_loadu_ps(src + r * ld) : _mm_setzero_ps();
    };
    __m256 x[4];
#pragma GCC unroll 4
    for (std::int64_t r = 0; r < 4; ++r)
      x[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(row(8 * h + r)), row(8 * h + r + 4), 1);
    const __m256 a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpacklo_ps(x[2], x[3]);
    const __m256 c = _mm256_unpackhi_ps(x[0], x[1]), d = _mm256_unpackhi_ps(x[2], x[3]);
    float* const to = reinterpret_cast<float*>(out) + 8 * h;
    _mm256_storeu_ps(to, _mm256_shuffle_ps(a, b, 0x44));
    _mm256_storeu_ps(to + width, _mm256_shuffle_ps(a, b, 0xEE));
    _mm256_storeu_ps(to + 2 * width, _mm256_shuffle_ps(c, d, 0x44));
    _mm256_storeu_ps(to + 3 * width, _mm256_shuffle_ps(c, d, 0xEE));
  }
}
#else
/// v with lanes 4 q .. 4 q + 3 from memory.
template <int q>
inline v16 with_quarter(v16 v, const float* p) {
#if defined(__AVX512F__)
  return (v16)_mm512_mask_broadcast_f32x4((__m512)v, 0xF << 4 * q, _mm_loadu_ps(p));
#else
  std::memcpy(reinterpret_cast<float*>(&v) + 4 * q, p, 16);
  return v;
#endif
}

/// Four columns of up to sixteen rows: lane r of out[k] is src[r * ld + k], zero from `rows` on. Rows r, r + 4, r + 8
/// and r + 12 are loaded into one vector, so that only quarters are left to be transposed.
inline void load_columns(const float* src, std::int64_t ld, std::int64_t rows, v16 (&out)[4]) {
  v16 x[4];
#pragma GCC unroll 4
  for (std::int64_t r = 0; r < 4; ++r) {
    x[r] = v16{};
    if (r < rows) x[r] = with_quarter<0>(x[r], src + r * ld);
    if (r + 4 < rows) x[r] = with_quarter<1>(x[r], src + (r + 4) * ld);
    if (r + 8 < rows) x[r] = with_quarter<2>(x[r], src + (r + 8) * ld);
    if (r + 12 < rows) x[r] = with_quarter<3>(x[r], src + (r + 12) * ld);
  }
  constexpr i16 low{0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};
  constexpr i16 pairs{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
  const v16 a = __builtin_shuffle(x[0], x[1], low), b = __builtin_shuffle(x[2], x[3], low);
  const v16 c = __builtin_shuffle(x[0], x[1], low + 2), d = __builtin_shuffle(x[2], x[3], low + 2);
  out[0] = __builtin_shuffle(a, b, pairs);
  out[1] = __builtin_shuffle(a, b, pairs + 2);
  out[2] = __builtin_shuffle(c, d, pairs);
  out[3] = __builtin_shuffle(c, d, pairs + 2);
}
#endif

/// Rows of memory that are needed soon: next() prefetches one cache line after the other into the second cache.
class Ahead {
 public:
  Ahead(const float* first, std::int64_t rows, std::int64_t row_floats, std::int64_t ld)
      : row_(first), at_(first), rows_(row_floats > 0 ? rows : 0), floats_(row_floats), ld_(ld) {}
  void next() {
    if (rows_ == 0) return;
    __builtin_prefetch(at_, 0, 2);
    if ((at_ += width) < row_ + floats_) return;
    at_ = row_ += ld_;
    --rows_;
  }

 private:
  const float *row_, *at_;
  std::int64_t rows_, floats_, ld_;
};

/// Rows [0, m) of an (m, kc) operand as panels of W rows, each stored k-major: (m / W, kc, W), zeros beyond m.
/// k_major: element (i, k) is at src[k * ld + i], else at src[i * ld + k]. `readable` >= m: rows that exist in
/// memory (vectors may read that far). Writes up to 16 floats past the end. Meanwhile prefetches the rows of `ahead`.
template <std::int64_t W>
void pack(bool k_major, const float* src, std::int64_t ld, std::int64_t m, std::int64_t readable, std::int64_t kc,
          float* out, Ahead* ahead = nullptr) {
  for (std::int64_t i = 0; i < m; i += W, out += W * kc) {
    const std::int64_t w = std::min(W, m - i);
    if (k_major) {
      const bool whole = w == W && i + (W + width - 1) / width * width <= readable;
      for (std::int64_t k = 0; k < kc; ++k) {
        const float* row = src + k * ld + i;
        if (ahead) ahead->next();
        if (whole) {
          for (std::int64_t j = 0; j < W; j += width) store(out + k * W + j, load(row + j));
        } else {
          for (std::int64_t j = 0; j < W; ++j) out[k * W + j] = j < w ? row[j] : 0.0f;
        }
      }
      continue;
    }
    std::int64_t k = 0;
    const auto columns = [&](std::int64_t rows) __attribute__((always_inline)) {
      for (; k + 4 <= kc; k += 4) {
        if (ahead) ahead->next();
        for (std::int64_t j = 0; j < W; j += width) {
          v16 t[4];
          load_columns(src + (i + j) * ld + k, ld, rows - j, t);
          for (int c = 0; c < 4; ++c) store(out + (k + c) * W + j, t[c]);
        }
      }
    };
    if (w == W) columns(W);
    else columns(w);
    for (; k < kc; ++k)
      for (std::int64_t j = 0; j < W; ++j) out[k * W + j] = j < w ? src[(i + j) * ld + k] : 0.0f;
  }
}

/// Where a tile goes: rows of floats, = or +=.
struct FloatTile {
  float* c;
  std::int64_t ld, n;  ///< n <= 32 columns
  bool add;

  void fetch(int r) const {
    __builtin_prefetch(c + r * ld, 1);
    __builtin_prefetch(c + r * ld + width, 1);
  }
  void put(int r, v16 left, v16 right) const {
    float* out = c + r * ld;
    if (n == panel_cols) {
      store(out, add ? load(out) + left : left);
      store(out + width, add ? load(out + width) + right : right);
    } else {
      float t[panel_cols];
      store(t, left);
      store(t + width, right);
      for (std::int64_t j = 0; j < n; ++j) out[j] = add ? out[j] + t[j] : t[j];
    }
  }
};

#if defined(__FMA__) && !defined(__AVX512F__)
/// One half of the panel's columns for R <= 6 rows: twelve accumulators of eight floats fit into sixteen registers.
/// Each element is the chain of multiply-adds that tile() promises. step(i) is called before k = 8 i.
template <int R, int row, int col, class Step>
[[gnu::always_inline]] inline void half_panel(std::int64_t kc, const float* a, const float* b, v16 (*out)[2], int half,
                                              Step&& step) {
  __m256 acc[R][2] = {};
  const auto one = [&](std::int64_t k) __attribute__((always_inline)) {
    const __m256 b0 = _mm256_loadu_ps(b + k * panel_cols + half * width),
                 b1 = _mm256_loadu_ps(b + k * panel_cols + half * width + 8);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * row + k * col);
      acc[r][0] = _mm256_fmadd_ps(x, b0, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(x, b1, acc[r][1]);
    }
  };
  std::int64_t k = 0;
  for (int i = 0; k + 8 <= kc; ++i) {
    step(i);
#pragma GCC unroll 4
    for (const std::int64_t end = k + 8; k < end; ++k) one(k);
  }
  for (; k < kc; ++k) one(k);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {  // by name: a copy of the array would keep it in memory while k runs
    float* const to = reinterpret_cast<float*>(&out[r][half]);
    _mm256_storeu_ps(to, acc[r][0]);
    _mm256_storeu_ps(to + 8, acc[r][1]);
  }
}
#endif

/// Tile `to` (R rows) = or += A (R, kc) * B panel (kc, 32). Element (r, k) of A is at a[r * row + k * col].
/// While k runs, it prefetches `to` and the rows of `ahead`. Each element is one chain of fused multiply-adds in the
/// order of k.
template <int R, int row, int col, class Tile>
[[gnu::noinline]] void tile(std::int64_t kc, const float* a, const float* b, const Tile& to, Ahead* ahead) {
  v16 acc[R][2] = {};
#if defined(__FMA__) && !defined(__AVX512F__)
  constexpr int first = R < 6 ? R : 6;
  const auto arrive = [&](int i) {
    if (i < R) to.fetch(i);
    if (ahead) ahead->next();
  };
  for (int half = 0; half < 2; ++half) {
    half_panel<first, row, col>(kc, a, b, acc, half, [&](int i) {
      if (half == 0) arrive(i);
    });
    if constexpr (R > first) half_panel<R - first, row, col>(kc, a + first * row, b, acc + first, half, [](int) {});
  }
#else
  const auto one = [&](std::int64_t k) __attribute__((always_inline)) {
    // Both panels together are larger than the first cache, and its own prefetcher is late: 8 % of the rate.
    __builtin_prefetch(b + (k + 8) * panel_cols);
    __builtin_prefetch(b + (k + 8) * panel_cols + width);
    if constexpr (row == 1) __builtin_prefetch(a + (k + 16) * col);
    const v16 b0 = load(b + k * panel_cols), b1 = load(b + k * panel_cols + width);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const v16 x = splat(a[r * row + k * col]);
      acc[r][0] = fma(x, b0, acc[r][0]);
      acc[r][1] = fma(x, b1, acc[r][1]);
    }
  };
  constexpr std::int64_t stride = 8;
  std::int64_t k = 0;
  for (int r = 0; k + stride <= kc; ++r) {
    if (r < R) to.fetch(r);
    if (ahead) ahead->next();
#pragma GCC unroll 1
    for (const std::int64_t end = k + stride; k < end; ++k) one(k);
  }
  for (; k < kc; ++k) one(k);
#endif
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) to.put(r, acc[r][0], acc[r][1]);
}

/// tile<rows, ...>() for rows = 1..12.
template <int row, int col, class Tile>
void tile_of(std::int64_t rows, std::int64_t kc, const float* a, const float* b, const Tile& to,
             Ahead* ahead = nullptr) {
  switch (rows) {
// clang-format off
#define TROUPE_TILE(R) case R: return tile<R, row, col>(kc, a, b, to, ahead);
    TROUPE_TILE(1) TROUPE_TILE(2) TROUPE_TILE(3) TROUPE_TILE(4) TROUPE_TILE(5) TROUPE_TILE(6)
    TROUPE_TILE(7) TROUPE_TILE(8) TROUPE_TILE(9) TROUPE_TILE(10) TROUPE_TILE(11) TROUPE_TILE(12)
#undef TROUPE_TILE
    // clang-format on
  }
}

}  // namespace troupe::kernels::simd
