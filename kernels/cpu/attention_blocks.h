// What forward and backward attention share: how a head's rows are cut and packed.
//
// A task is one (sample, key-value head). Scores are made 12 query rows x 96 keys at a time and never leave
// the nearest caches; what lies above the diagonal is skipped in steps of 12 rows.
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/micro.h"

namespace troupe::kernels::cpu {

inline constexpr std::int64_t seq_block = 96;  // whole panels of 12 rows and of 32 columns
static_assert(seq_block % simd::panel_rows == 0 && seq_block % simd::panel_cols == 0);

struct HeadShape {
  std::int64_t B, T, H, KV, D;                ///< H, KV: heads of this part
  std::int64_t group, first_q, first_kv;      ///< of the whole: query heads of a key-value head; where the part begins
  std::int64_t q_ld, kv_ld;                   ///< floats from one position to the next
  std::int64_t by_position, by_element;       ///< floats of a packed head, see below
  float scale;

  static HeadShape of(const View& q, const View& k, std::int64_t D) {
    HeadShape s{};
    s.B = q.shape[0], s.T = q.shape[1], s.D = D;
    s.H = q.shape[2] / D, s.KV = k.shape[2] / D, s.group = q.logical[2] / k.logical[2];
    s.first_q = q.extent.dims[2].lo / D, s.first_kv = k.extent.dims[2].lo / D;
    s.q_ld = s.H * D, s.kv_ld = s.KV * D;
    const auto panels = [](std::int64_t n) { return (n + simd::panel_cols - 1) / simd::panel_cols; };
    s.by_position = panels(s.T) * simd::panel_cols * D + simd::lanes;
    s.by_element = panels(D) * simd::panel_cols * s.T + simd::lanes;
    s.scale = 1.0f / std::sqrt(static_cast<float>(D));
    return s;
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
};

/// out (rows, D) = or += a (rows, kc) * positions [first, first + kc) of a head packed by elements. Element
/// (r, k) of a is at a[r * row + k * col].
template <int row, int col>
void times_head(const HeadShape& s, std::int64_t rows, std::int64_t kc, const float* a, const float* packed,
                std::int64_t first, float* out, std::int64_t ld, bool add) {
  for (std::int64_t d = 0; d < s.D; d += simd::panel_cols)
    simd::tile_of<row, col>(rows, kc, a, packed + d * s.T + first * simd::panel_cols, out + d, ld,
                            std::min(simd::panel_cols, s.D - d), add);
}

/// scores (rows, cols rounded up to 32; row length seq_block) = a (panel of 12 rows) * positions from `first` on.
inline void head_scores(const HeadShape& s, std::int64_t rows, std::int64_t cols, const float* a, const float* packed,
                        std::int64_t first, float* scores) {
  for (std::int64_t j = 0; j < cols; j += simd::panel_cols)
    simd::tile_of<1, simd::panel_rows>(rows, s.D, a, packed + (first + j) * s.D, scores + j, seq_block,
                                       simd::panel_cols, false);
}

/// Lanes base .. base + 15 that are below n: all bits set.
inline simd::i16 below(std::int64_t base, std::int64_t n) {
  const simd::i16 index{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return index < static_cast<std::int32_t>(n - base);
}

}  // namespace troupe::kernels::cpu
