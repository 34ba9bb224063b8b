// How a kernel stores terms of weight gradients: what TermStore (kernels/cpu/term_store.h) does on the CPU.
#pragma once

#include "kernels/cuda/prelude.cuh"
#include "kernels/term_target.h"

namespace troupe::kernels::cuda {

/// Where the terms of a kernel go. Host code makes it of an output.
struct TermTarget {
  std::int64_t* sums;
  float* values;
  double scale;  ///< 2^exponent
  float* peak;
  std::int64_t ld;
  bool accumulate;
};
inline TermTarget term_target(const Terms& t) {
  return {t.sums, t.values, std::ldexp(1.0, t.exponent), t.peak, t.ld, t.accumulate};
}
inline TermTarget term_target(const View& out, bool accumulate) { return term_target(terms_of(out, accumulate)); }

/// x * scale to the nearest integer, ties to even, where that is below 2^51 (simd::to_counts).
TROUPE_DEVICE std::uint64_t to_count(float x, double scale) {
  constexpr double middle = 0x1.8p52;
  return static_cast<std::uint64_t>(bits_of(fma(static_cast<double>(x), scale, middle))) -
         static_cast<std::uint64_t>(bits_of(middle));
}

/// A count times `unit`, a power of two: rounded to double, then to float (simd::to_floats).
TROUPE_DEVICE float to_float(std::uint64_t count, double unit) {
  return static_cast<float>(static_cast<double>(static_cast<std::int64_t>(count)) * unit);
}

/// The terms that one thread stores. raise_peak() at the end, by all threads of its warp.
struct TermWriter {
  TermTarget to;
  std::int32_t seen = 0;

  /// Element `at` = or += term.
  TROUPE_DEVICE void put(std::int64_t at, float term, bool add) {
    float stored = term;
    if (to.sums) {
      auto* sum = reinterpret_cast<std::uint64_t*>(to.sums + at);
      const std::uint64_t count = to_count(term, to.scale);
      *sum = add ? *sum + count : count;
    } else {
      if (add) stored = to.values[at] + term;
      to.values[at] = stored;
    }
    see(stored);
  }
  TROUPE_DEVICE void see(float stored) {
    const std::int32_t magnitude = bits_of(stored) & 0x7FFFFFFF;
    seen = seen > magnitude ? seen : magnitude;
  }
  /// Raises the peak to the largest magnitude that the warp has stored.
  TROUPE_DEVICE void raise_peak() {
    if (!to.peak) return;
    for (int bits = 16; bits > 0; bits /= 2) {
      const std::int32_t other = shuffle_xor(seen, bits);
      seen = seen > other ? seen : other;
    }
    // magnitudes are not negative; -0, which is what View::peak begins with, is
    if (thread_x() % warp_size == 0) atomic_max(reinterpret_cast<std::int32_t*>(to.peak), seen);
  }
};

}  // namespace troupe::kernels::cuda
