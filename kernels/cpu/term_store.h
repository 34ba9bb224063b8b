// How a task stores terms: the gradients of one microbatch, each of which is added once to an exact sum
// (kernels/exact_sum.h). Included by kernels/cpu/*.cpp only.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/counts.h"
#include "kernels/term_target.h"

namespace troupe::kernels {

/// Stores the terms of one task. Keeps the largest |term| that it has stored; the destructor raises the peak, which
/// tasks share.
class TermStore {
 public:
  explicit TermStore(const Terms& to) : to_(to), scale_(simd::power_of_two(to.exponent)) {}
  TermStore(const TermStore&) = delete;
  ~TermStore() {
    if (!to_.peak) return;
    std::int32_t seen = 0;  // magnitudes are not negative; -0, which is what View::peak begins with, is
    for (int i = 0; i < 2 * simd::wide; ++i) seen = std::max(seen, static_cast<std::int32_t>(seen_[i]));
    std::atomic_ref<float> peak(*to_.peak);
    float now = peak.load(std::memory_order_relaxed);
    while (std::bit_cast<std::int32_t>(now) < seen &&
           !peak.compare_exchange_weak(now, std::bit_cast<float>(seen), std::memory_order_relaxed)) {}
  }

  /// Elements at + r * Terms::ld + c = or += terms[r * ld + c], for r in [0, rows) and c in [0, n).
  /// An f32 output adds them as floats; its peak covers the values stored.
  void put(std::int64_t at, const float* terms, std::int64_t ld, std::int64_t rows, std::int64_t n, bool add) {
    if (!to_.sums) put_values(at, terms, ld, rows, n, add);
    else if (add) put_sums<true>(at, terms, ld, rows, n);
    else put_sums<false>(at, terms, ld, rows, n);
  }
  void put(std::int64_t at, const float* terms, std::int64_t n, bool add) { put(at, terms, n, 1, n, add); }

  /// Elements [at, at + n) = 0.
  void clear(std::int64_t at, std::int64_t n) const {
    if (to_.sums) std::fill_n(to_.sums + at, n, std::int64_t{0});
    else std::fill_n(to_.values + at, n, 0.0f);
  }

 private:
  static constexpr std::int64_t step = 2 * simd::wide;

  template <bool add>
  void put_sums(std::int64_t at, const float* terms, std::int64_t ld, std::int64_t rows, std::int64_t n) {
    using namespace simd;
    magnitudes seen = seen_;
    const double scale = scale_;
    const auto one = [&](std::int64_t * s, const float* t) __attribute__((always_inline)) {
      seen = larger(seen, t);
      for (std::int64_t h = 0; h < step; h += wide) {
        const counts c = to_counts(load_floats(t + h), scale);
        store_counts(s + h, add ? load_counts(s + h) + c : c);
      }
    };
    for (std::int64_t r = 0; r < rows; ++r) {
      std::int64_t* sums = to_.sums + at + r * to_.ld;
      const float* t = terms + r * ld;
      std::int64_t c = 0;
      for (; c + step <= n; c += step) one(sums + c, t + c);
      if (c == n) continue;
      float tail[step] = {};
      std::int64_t tail_sums[step] = {};
      std::copy_n(t + c, n - c, tail);
      if (add) std::copy_n(sums + c, n - c, tail_sums);
      one(tail_sums, tail);
      std::copy_n(tail_sums, n - c, sums + c);
    }
    seen_ = seen;
  }

  void put_values(std::int64_t at, const float* terms, std::int64_t ld, std::int64_t rows, std::int64_t n, bool add) {
    using namespace simd;
    magnitudes seen = seen_;
    for (std::int64_t r = 0; r < rows; ++r) {
      float* values = to_.values + at + r * to_.ld;
      const float* t = terms + r * ld;
      if (add)
        map(
            n, values, [](v16 a, v16 b) { return a + b; }, values, t);
      else std::copy_n(t, n, values);
      std::int64_t c = 0;
      for (; c + step <= n; c += step) seen = larger(seen, values + c);
      if (c == n) continue;
      float tail[step] = {};
      std::copy_n(values + c, n - c, tail);
      seen = larger(seen, tail);
    }
    seen_ = seen;
  }

  const Terms to_;
  const double scale_;
  simd::magnitudes seen_ = {};
};

/// Elements [0, n) = or += terms[0, n).
inline void put_terms(const Terms& to, const float* terms, std::int64_t n, Parallel& par) {
  for_blocks(par, n, element_block,
             [&](std::int64_t i, std::int64_t end) { TermStore(to).put(i, terms + i, end - i, to.accumulate); });
}

}  // namespace troupe::kernels
