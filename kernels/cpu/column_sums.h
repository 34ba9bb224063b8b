// Sums over rows, column by column: what gradients of biases and norm weights are.
#pragma once

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/term_store.h"

namespace troupe::kernels {

/// Puts one term into each column c: the sum over rows r of value(r, c, load), where load(p) reads the 16 (or fewer)
/// columns from c on. Each column adds its rows in order, in blocks of 64 rows that are then added in order.
template <class F>
void column_sums(Parallel& par, std::int64_t rows, std::int64_t cols, const Terms& out, F&& value) {
  using namespace simd;
  for_blocks(par, cols, 4 * width, [&](std::int64_t begin, std::int64_t end) {
    v16 total[4] = {};
    for (std::int64_t r0 = 0; r0 < rows; r0 += 64) {
      v16 part[4] = {};
      const std::int64_t r1 = std::min(rows, r0 + 64);
      if (end - begin == 4 * width) {
        for (std::int64_t r = r0; r < r1; ++r)
          for (int j = 0; j < 4; ++j) part[j] += value(r, begin + j * width, [](const float* p) { return load(p); });
      } else {
        for (std::int64_t r = r0; r < r1; ++r)
          chunks(end - begin, [&](std::int64_t c, std::int64_t n) {
            part[c / width] += value(r, begin + c, [n](const float* p) { return load_tail(p, n); });
          });
      }
      for (int j = 0; j < 4; ++j) total[j] += part[j];
    }
    float terms[4 * width];
    for (int j = 0; j < 4; ++j) store(terms + j * width, total[j]);
    TermStore(out).put(begin, terms, end - begin, out.accumulate);
  });
}

}  // namespace troupe::kernels
