#include "kernels/cuda/sums.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/terms.cuh"

namespace troupe::kernels::cuda {

namespace {

constexpr int sum_threads = 256, staged = 1024;

/// Two pieces of the values: one is added while the other is read.
struct Pieces {
  double v[2][staged];
};

/// Copies the piece that begins at `begin` to shared memory, by threads [first, sum_threads).
TROUPE_DEVICE void stage(Pieces& pieces, const double* values, std::int64_t begin, std::int64_t n, int first) {
  double(&to)[staged] = pieces.v[begin / staged % 2];
#pragma unroll 4
  for (int i = thread_x() - first; i < staged; i += sum_threads - first)
    if (begin + i < n) to[i] = values[begin + i];
}

/// One thread adds; the other warps keep it supplied.
TROUPE_KERNEL void TROUPE_THREADS(sum_threads) add_in_order(const double* values, std::int64_t n, double* sum) {
  Pieces& pieces = shared<Pieces>();
  stage(pieces, values, 0, n, 0);
  sync_block();
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += staged) {
    if (thread_x() >= warp_size) stage(pieces, values, begin + staged, n, warp_size);
    if (thread_x() == 0) {
      const double(&from)[staged] = pieces.v[begin / staged % 2];
      const int count = n - begin < staged ? static_cast<int>(n - begin) : staged;
      int i = 0;
      for (; i + 16 <= count; i += 16)
#pragma unroll
        for (int k = 0; k < 16; ++k) total += from[i + k];
      for (; i < count; ++i) total += from[i];
    }
    sync_block();
  }
  if (thread_x() == 0) *sum = total;
}

constexpr int column_threads = 64;

TROUPE_KERNEL void TROUPE_THREADS(column_threads)
    add_parts(const float* parts, std::int64_t count, std::int64_t cols, TermTarget to) {
  const std::int64_t c = block_x() * column_threads + thread_x();
  TermWriter writer{to};
  if (c < cols) {
    float total = 0;
#pragma unroll 16
    for (std::int64_t i = 0; i < count; ++i) total += parts[i * cols + c];
    writer.put(c, total, to.accumulate);
  }
  writer.raise_peak();
}

}  // namespace

void sum_in_order(void* queue, const double* values, std::int64_t n, double* sum) {
  launch(queue, {.threads = sum_threads, .shared_bytes = sizeof(Pieces)}, add_in_order, values, n, sum);
}

void put_sums_of_columns(void* queue, const float* parts, std::int64_t count, std::int64_t cols, const Terms& out) {
  launch(queue, {.x = ceil_div(cols, column_threads), .threads = column_threads}, add_parts, parts, count, cols,
         term_target(out));
}

}  // namespace troupe::kernels::cuda
