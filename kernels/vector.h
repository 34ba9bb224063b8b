// Plain functions over long vectors, outside the graph of ops: optimizer, sums, norms, initial values, digests.
// NU-0 holds for each: bits depend on the values (and, where said, on global indices), never on where a
// vector is cut, how it is aligned or how many threads share it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/op.h"
#include "kernels/sum.h"

namespace troupe::kernels {

/// dst[i] += src[i].
void add_into(float* dst, const float* src, std::int64_t n, Parallel& par);

/// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019), as PyTorch writes it.
struct AdamW {
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  double grad_scale = 1;  ///< multiplies each gradient first (clipping)
  std::int64_t step = 1;  ///< 1-based, for the bias correction
  /// f32 values that are kept of each element of a parameter from one update to the next: both moments.
  static constexpr std::int64_t state_values() { return 2; }
  /// f32 values of each element that a checkpoint has: itself and its state.
  static constexpr std::int64_t saved_values() { return 1 + state_values(); }
  /// Bytes that the update of an element moves, whose gradient has so many: reads all, writes all but the gradient.
  static constexpr std::int64_t update_bytes(std::int64_t gradient_bytes) {
    return gradient_bytes + 2 * 4 * saved_values();
  }
};
/// One update of n parameters p with gradient g; m and v are the running moments.
void adamw_update(float* p, const Gradient& g, float* m, float* v, std::int64_t n, const AdamW& hyper, Parallel& par);

/// sums[r] = sum of squares of row r of g (rows, cols), in double. Column c goes to accumulator c mod 8, in
/// order of c; the eight combine as ((0+4)+(2+6)) + ((1+5)+(3+7)).
void row_square_sums(const Gradient& g, std::int64_t rows, std::int64_t cols, double* sums, Parallel& par);

/// f32 values that are normal(0, std): each a pure function of (key, its index in the logical tensor).
void init_normal(const View& view, std::uint64_t key, float std, Parallel& par);
void init_constant(const View& view, float value, Parallel& par);

/// Whether no value is NaN or infinite.
bool all_finite(const float* values, std::int64_t n);

/// An additive hash (mod 2^64, two independent words) of (index in the logical tensor, bits of the element):
/// the digests of extents that cover a tensor once add up to the tensor's.
using Digest = std::array<std::uint64_t, 2>;
Digest digest(const View& view, Parallel& par);
inline Digest operator+(const Digest& a, const Digest& b) { return {a[0] + b[0], a[1] + b[1]}; }

}  // namespace troupe::kernels
