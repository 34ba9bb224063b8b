// What all kinds of attention share: how a head's rows are cut and packed, and one block of the online softmax.
//
// A task is one (sample, key-value head). Scores are made 12 query rows x 96 keys at a time and never leave
// the nearest caches; what lies above the diagonal is skipped in steps of 12 rows.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/micro.h"

namespace troupe::kernels::cpu {

inline constexpr std::int64_t seq_block = 96;  // positions: whole panels of 12 rows and of 32 columns (micro.h)
static_assert(seq_block % simd::panel_rows == 0 && seq_block % simd::panel_cols == 0);

struct HeadShape {
  std::int64_t B, T, H, KV, D;  ///< H, KV: heads of this part
  /// of the whole: query heads of a key-value head; where the part begins
  std::int64_t group, first_q, first_kv;
  std::int64_t q_ld, kv_ld;              ///< floats from one position to the next
  std::int64_t by_position, by_element;  ///< floats of a packed head, see below
  float scale;

  static HeadShape of(const View& q, const View& k, std::int64_t D) { return of(q, k, D, q.shape[1]); }
  /// Of packed heads of `T` positions.
  static HeadShape of(const View& q, const View& k, std::int64_t D, std::int64_t T) {
    HeadShape s{};
    s.B = q.shape[0], s.T = T, s.D = D;
    s.H = q.shape[2] / D, s.KV = k.shape[2] / D, s.group = q.logical[2] / k.logical[2];
    s.first_q = q.extent.dims[2].lo / D, s.first_kv = k.extent.dims[2].lo / D;
    s.q_ld = s.H * D, s.kv_ld = s.KV * D;
    s.by_position = packed_floats(T, D), s.by_element = packed_floats(D, T);
    s.scale = 1.0f / std::sqrt(static_cast<float>(D));
    return s;
  }
  /// `n` positions (elements) in panels of 32, each with all its elements (positions); room for pack().
  static std::int64_t packed_floats(std::int64_t n, std::int64_t of_each) {
    return (n + simd::panel_cols - 1) / simd::panel_cols * simd::panel_cols * of_each + simd::width;
  }
  /// This part's query heads of one of its key-value heads.
  Range queries_of(std::int64_t kv) const {
    const auto lo = (first_kv + kv) * group - first_q;
    return {std::clamp<std::int64_t>(lo, 0, H), std::clamp<std::int64_t>(lo + group, 0, H)};
  }
  std::int64_t q_at(std::int64_t b, std::int64_t h) const { return b * T * q_ld + h * D; }
  std::int64_t kv_at(std::int64_t b, std::int64_t kv) const { return b * T * kv_ld + kv * D; }

  /// A head (T, D) as the right operand of rows x D x T: panels of 32 positions, (T / 32, D, 32).
  void pack_positions(const float* head, std::int64_t ld, float* out) const {
    simd::pack<simd::panel_cols>(false, head, ld, T, T, D, out);
  }
  /// A head (T, D) as the right operand of rows x T x D: panels of 32 elements, (D / 32, T, 32).
  void pack_elements(const float* head, std::int64_t ld, float* out) const {
    simd::pack<simd::panel_cols>(true, head, ld, D, D, T, out);
  }
  /// One position of a head (D) where pack_positions, or pack_elements, would have it.
  void put_position(const float* row, std::int64_t position, float* out) const {
    float* const column = out + position / simd::panel_cols * simd::panel_cols * D + position % simd::panel_cols;
    for (std::int64_t d = 0; d < D; ++d) column[d * simd::panel_cols] = row[d];
  }
  void put_elements(const float* row, std::int64_t position, float* out) const {
    for (std::int64_t d = 0; d < D; d += simd::panel_cols)
      std::copy_n(row + d, std::min(simd::panel_cols, D - d), out + d * T + position * simd::panel_cols);
  }
};

/// out (rows, D) = or += a (rows, kc) * positions [first, first + kc) of a head packed by elements. Element
/// (r, k) of a is at a[r * row + k * col].
template <int row, int col>
void times_head(const HeadShape& s, std::int64_t rows, std::int64_t kc, const float* a, const float* packed,
                std::int64_t first, float* out, std::int64_t ld, bool add) {
  for (std::int64_t d = 0; d < s.D; d += simd::panel_cols)
    simd::tile_of<row, col>(rows, kc, a, packed + d * s.T + first * simd::panel_cols,
                            simd::FloatTile{out + d, ld, std::min(simd::panel_cols, s.D - d), add});
}

/// scores (rows, cols rounded up to 32; row length seq_block) = a (panel of 12 rows) * positions from `first` on.
inline void head_scores(const HeadShape& s, std::int64_t rows, std::int64_t cols, const float* a, const float* packed,
                        std::int64_t first, float* scores) {
  for (std::int64_t j = 0; j < cols; j += simd::panel_cols)
    simd::tile_of<1, simd::panel_rows>(rows, s.D, a, packed + (first + j) * s.D,
                                       simd::FloatTile{scores + j, seq_block, simd::panel_cols, false});
}

/// All bits set in the lanes i with base + i < n.
inline simd::i16 below(std::int64_t base, std::int64_t n) {
  const simd::i16 index{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return index < static_cast<std::int32_t>(n - base);
}

/// Scores (rows, seq_block) become exp(scale * score - running max); returns the factor by which each row's older sums
/// shrink. Row r has `cols` keys or, on the diagonal, where first_valid is not 0, first_valid + r.
inline simd::v16 softmax_panel(float* scores, std::int64_t rows, std::int64_t cols, std::int64_t first_valid,
                               float scale, float* run_max, float* run_sum) {
  using namespace simd;
  float now[width] = {}, before[width] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * seq_block;
    const std::int64_t valid = first_valid ? first_valid + r : cols;
    v16 top = splat(-INFINITY);
    for (std::int64_t j = 0; j < valid; j += width) top = max(below(j, valid) ? load(row + j) : splat(-INFINITY), top);
    before[r] = run_max[r];
    now[r] = std::max(run_max[r], max(top) * scale);
    run_max[r] = now[r];
    const v16 s = splat(scale), m = splat(-now[r]);
    v16 total{};
    for (std::int64_t j = 0; j < cols; j += width) {
      const v16 p = below(j, valid) ? exp(fma(load(row + j), s, m)) : v16{};
      store(row + j, p);
      total += p;
    }
    const float old = run_sum[r];
    run_sum[r] = sum(total);
    before[r] -= now[r];
    now[r] = old;
  }
  const v16 shrink = exp(load(before));
  for (std::int64_t r = 0; r < rows; ++r) run_sum[r] = now[r] * shrink[r] + run_sum[r];
  return shrink;
}

/// Attends up to 12 query rows of one head (qp: packed) to the keys and values from position k0 on, at most seq_block
/// of them (softmax_panel). `acc` (rows, D): the weighted sums of values so far, not yet divided by run_sum; at k0 = 0
/// garbage.
inline void attend(const HeadShape& s, std::int64_t rows, std::int64_t cols, std::int64_t first_valid, const float* qp,
                   const float* keys, const float* values, std::int64_t k0, float* run_max, float* run_sum,
                   float* acc) {
  using namespace simd;
  alignas(64) float scores[panel_rows * seq_block];
  head_scores(s, rows, cols, qp, keys, k0, scores);
  const v16 shrink = softmax_panel(scores, rows, cols, first_valid, s.scale, run_max, run_sum);
  for (std::int64_t r = 0; r < rows && k0 > 0; ++r) {
    const v16 f = splat(shrink[r]);
    map(
        s.D, acc + r * s.D, [f](v16 x) { return x * f; }, acc + r * s.D);
  }
  times_head<seq_block, 1>(s, rows, cols, scores, values, k0, acc, s.D, k0 > 0);
}

}  // namespace troupe::kernels::cpu
