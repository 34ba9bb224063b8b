#include "kernels/square_sums.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/gradient.h"
#include "kernels/cpu/square_sum.h"

namespace troupe::kernels {

void row_square_sums(const Gradient& g, std::int64_t rows, std::int64_t cols, double* sums, Parallel& par) {
  for_blocks(par, rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      SquareSum sum;
      for_pieces(g, r * cols, (r + 1) * cols, [&](std::int64_t i, std::int64_t stop, const float* x) {
        sum.add(stop - i, [x](std::int64_t c, std::int64_t w) { return load8(x + c, w); });
      });
      sums[r] = sum.value();
    }
  });
}

}  // namespace troupe::kernels
