// softmax_cross_entropy and its gradient. A warp makes a row of the loss: its sum has 32 chains, one in each lane. The
// row is read twice, as the sum begins when the row's maximum is known.
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/exact.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/softmax_rows.h"
#include "kernels/cuda/sums.h"
#include "kernels/exact_math.h"

namespace troupe::kernels::cuda {

namespace {

constexpr int threads = 256, rows_per_block = threads / warp_size;

TROUPE_KERNEL void TROUPE_THREADS(threads) rows_of_loss(std::int64_t rows, std::int64_t n, const float* logits,
                                                        const std::int32_t* target, float* lse, double* row_loss) {
  const std::int64_t r = block_x() * rows_per_block + thread_x() / warp_size;
  if (r >= rows) return;
  const float* x = logits + r * n;
  float max, sum;
  warp_max_and_sum(
      n, [=](std::int64_t i) { return x[i]; }, max, sum);
  if (thread_x() % warp_size != 0) return;
  const double log_sum = exact::log(static_cast<double>(sum));
  lse[r] = static_cast<float>(log_sum + max);
  // beyond the table: OpDef::check refuses it where the host can read it
  row_loss[r] = target[r] < 0 || target[r] >= n ? 0.0 : log_sum + max - x[target[r]];
}

constexpr int per_thread = 4;

/// A block has `per_thread` elements of a row for each of its threads.
TROUPE_KERNEL void TROUPE_THREADS(threads)
    rows_of_grad(const float* x, std::int64_t n, std::int64_t blocks_per_row, const std::int32_t* target,
                 const float* lse, float scale, float* dx, std::int64_t first) {
  const std::int64_t r = block_x() / blocks_per_row;
  const std::int64_t begin = block_x() % blocks_per_row * threads_x() * per_thread + thread_x();
  const float shift = lse[r], f = target[r] < 0 ? 0.0f : scale;
  const std::int64_t own = target[r] < 0 ? -1 : target[r] - first;
  float v[per_thread];
#pragma unroll
  for (int k = 0; k < per_thread; ++k) {
    const std::int64_t i = begin + k * threads_x();
    v[k] = i < n ? x[r * n + i] : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < per_thread; ++k) {
    const std::int64_t i = begin + k * threads_x();
    const float p = exp(v[k] - shift) * f;
    if (i < n) dx[r * n + i] = i == own ? p - scale : p;
  }
}

}  // namespace

void softmax_rows_grad(void* queue, const float* x, std::int64_t rows, std::int64_t n, const std::int32_t* target,
                       const float* lse, float scale, float* dx, std::int64_t first) {
  const std::int64_t warps = std::max<std::int64_t>(ceil_div(n, per_thread * warp_size), 1);
  const int block = static_cast<int>(std::min<std::int64_t>(warps * warp_size, threads));
  const std::int64_t blocks_per_row = ceil_div(n, block * per_thread);
  launch(queue, {.x = rows * blocks_per_row, .threads = block}, rows_of_grad, x, n, blocks_per_row, target, lse, scale,
         dx, first);
}

void softmax_cross_entropy(const Call& call) {
  const View& logits = call.in[0];  // (..., V)
  const auto rows = call.in[1].size();
  auto* row_loss = reinterpret_cast<double*>(call.scratch.data());
  launch(call.queue, {.x = ceil_div(rows, rows_per_block), .threads = threads}, rows_of_loss, rows, logits.cols(),
         logits.as<float>(), call.in[1].as<std::int32_t>(), call.out[1].as<float>(), row_loss);
  sum_in_order(call.queue, row_loss, rows, call.out[0].as<double>());
}

void softmax_cross_entropy_grad(const Call& call) {
  const View& logits = call.in[0];
  softmax_rows_grad(call.queue, logits.as<float>(), call.in[1].size(), logits.cols(), call.in[1].as<std::int32_t>(),
                    call.in[2].as<float>(), static_cast<float>(call.attrs->real("scale", 1)), call.out[0].as<float>(),
                    0);
}

}  // namespace troupe::kernels::cuda
