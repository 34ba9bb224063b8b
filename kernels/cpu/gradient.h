// A Gradient as floats, a piece at a time: sums are read once, and no rounded copy of a whole gradient exists.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/counts.h"
#include "kernels/exact_sum.h"

namespace troupe::kernels {

/// Floats of a piece: a quarter of the first cache at most, and whole vectors.
inline constexpr std::int64_t gradient_piece = 1024;

/// out[0, n) = elements [begin, begin + n) of g.
inline void round_piece(float* out, const Gradient& g, std::int64_t begin, std::int64_t n) {
  using namespace simd;
  if (g.rounded) {
    std::copy_n(g.rounded + begin, n, out);
    return;
  }
  const double unit = power_of_two(-g.exponent);
  std::int64_t i = 0;
  for (; i + width <= n; i += width) {
    counts sum[width / wide] = {};
    for (const std::int64_t* use : g.sums) {
      const std::int64_t* from = use + begin + i;
      // The sums of the next piece, while the caller works on this piece.
      __builtin_prefetch(from + gradient_piece);
      __builtin_prefetch(from + gradient_piece + width / 2);
      for (std::int64_t k = 0; k < width / wide; ++k) sum[k] += load_counts(from + k * wide);
    }
    for (std::int64_t k = 0; k < width / wide; ++k) store_floats(out + i + k * wide, to_floats(sum[k], unit));
  }
  for (; i < n; ++i) {
    counts sum{};
    for (const std::int64_t* use : g.sums) sum[0] += static_cast<std::uint64_t>(use[begin + i]);
    out[i] = to_floats(sum, unit)[0];
  }
}

/// Calls body(i, end, g) for pieces [i, end) of [begin, end), with the floats of elements i, i + 1, ... at g.
template <class F>
void for_pieces(const Gradient& g, std::int64_t begin, std::int64_t end, F&& body) {
  if (g.rounded) return body(begin, end, g.rounded + begin);
  alignas(64) float piece[gradient_piece];
  for (std::int64_t i = begin; i < end; i += gradient_piece) {
    const std::int64_t to = std::min(end, i + gradient_piece);
    round_piece(piece, g, i, to - i);
    body(i, to, std::as_const(piece));
  }
}

}  // namespace troupe::kernels
