// The optimizer's update of a parameter, outside the graph of ops. NU-0 (kernels): the bits of an element depend on its
// values only, never on where a vector is cut, how it is aligned or how many threads share it.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.h"

namespace troupe::kernels {

/// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019), as PyTorch writes it.
struct AdamW {
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  double grad_scale = 1;  ///< multiplies each gradient first (clipping); set by the run, as `step` is
  std::int64_t step = 1;  ///< 1-based, for the bias correction
  /// f32 values that are kept of each element of a parameter from one update to the next: both moments (the running
  /// means of its gradient and of the gradient's square).
  static constexpr std::int64_t state_values() { return 2; }
  /// f32 values of each element that a checkpoint has: itself and its state.
  static constexpr std::int64_t saved_values() { return 1 + state_values(); }
  /// Bytes that the update of an element moves, whose gradient has so many: reads all, writes all but the gradient.
  static constexpr std::int64_t update_bytes(std::int64_t gradient_bytes) {
    return gradient_bytes + 2 * 4 * saved_values();
  }
  bool operator==(const AdamW&) const = default;
};
/// Where n parameters and both running moments lie.
struct AdamWState {
  float *p, *m, *v;
};
/// One update of n parameters with gradient g, from one place to another, or in place. REQUIRES: `to` is `from`, or
/// they do not overlap.
void adamw_update(const AdamWState& from, const AdamWState& to, const Gradient& g, std::int64_t n, const AdamW& hyper,
                  Parallel& par);
/// In place.
inline void adamw_update(float* p, const Gradient& g, float* m, float* v, std::int64_t n, const AdamW& hyper,
                         Parallel& par) {
  const AdamWState at{p, m, v};
  adamw_update(at, at, g, n, hyper, par);
}

}  // namespace troupe::kernels
