// Sums over rows, column by column, in the order of kernels/cpu/column_sums.h: blocks of 64 rows in parallel, each a
// chain of its rows; then the blocks, in order.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sums.h"

namespace troupe::kernels::cuda {

inline constexpr int column_sum_threads = 128, column_sum_rows = 64;

/// Floats of scratch that column_sums needs.
inline std::int64_t column_sums_floats(std::int64_t rows, std::int64_t cols) {
  return ceil_div(rows, column_sum_rows) * cols;
}

/// Block `column_blocks` b + j makes the sums of block b of rows, for its 128 columns j.
template <class F>
TROUPE_KERNEL void TROUPE_THREADS(column_sum_threads)
    add_rows(std::int64_t rows, std::int64_t cols, std::int64_t column_blocks, F value, float* parts) {
  const std::int64_t b = block_x() / column_blocks, j = block_x() % column_blocks;
  const std::int64_t c = j * column_sum_threads + thread_x(), first = b * column_sum_rows;
  if (c >= cols) return;
  float part = 0;
  if (first + column_sum_rows <= rows) {
#pragma unroll 16
    for (int r = 0; r < column_sum_rows; ++r) part += value(first + r, c);
  } else {
    for (std::int64_t r = first; r < rows; ++r) part += value(r, c);
  }
  parts[b * cols + c] = part;
}

/// Puts one term into each column c: the sum over rows r of value(r, c).
template <class F>
void column_sums(void* queue, std::int64_t rows, std::int64_t cols, const Terms& out, float* scratch, F value) {
  const std::int64_t row_blocks = ceil_div(rows, column_sum_rows), column_blocks = ceil_div(cols, column_sum_threads);
  launch(queue, {.x = row_blocks * column_blocks, .threads = column_sum_threads}, add_rows<F>, rows, cols,
         column_blocks, value, scratch);
  put_sums_of_columns(queue, scratch, row_blocks, cols, out);
}

}  // namespace troupe::kernels::cuda
