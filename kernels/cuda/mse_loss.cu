// mse_loss and its gradient. The loss is a sum over blocks of 16,384 elements, each of eight chains in double: a warp
// reads a block, 32 elements a step in whole lines, and hands each to the lane that has its chain. 2,048 additions in a
// row, some 15 us, are the least time of a call; blocks are in parallel.
#include "kernels/cpu/blocks.h"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/sums.h"

namespace troupe::kernels::cuda {

namespace {

constexpr int threads = 64, blocks_per_block = threads / warp_size;
constexpr int ahead = 8;  ///< elements that a lane holds

TROUPE_KERNEL void TROUPE_THREADS(threads) square_sums(const float* __restrict__ ys, const float* __restrict__ targets,
                                                       std::int64_t n, double* __restrict__ block_sum) {
  const std::int64_t block = block_x() * blocks_per_block + thread_x() / warp_size, begin = block * element_block;
  if (begin >= n) return;
  const float *y = ys + begin, *target = targets + begin;
  const int lane = thread_x() % warp_size;
  const int count = n - begin < element_block ? static_cast<int>(n - begin) : static_cast<int>(element_block);
  float a[ahead], b[ahead];
  const auto read = [&](int i) {
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const int e = i + k * warp_size + lane;
      a[k] = e < count ? y[e] : 0.0f;
      b[k] = e < count ? target[e] : 0.0f;
    }
  };
  read(0);
  double sum = 0;  // of chain lane mod 8; a difference beyond the end adds 0
  for (int i = 0; i < count; i += ahead * warp_size) {
    float d[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k) d[k] = a[k] - b[k];
    read(i + ahead * warp_size);
#pragma unroll
    for (int k = 0; k < ahead; ++k)
#pragma unroll
      for (int j = 0; j < warp_size; j += 8) {
        const double x = shuffle(d[k], j + lane % 8);
        sum += x * x;
      }
  }
  sum += shuffle_xor(sum, 4);
  sum += shuffle_xor(sum, 2);
  sum += shuffle_xor(sum, 1);
  if (lane == 0) block_sum[block] = sum;
}

struct Gradient {
  float f;
  TROUPE_DEVICE float operator()(float y, float target) const { return f * (y - target); }
};

}  // namespace

void mse_loss(const Call& call) {
  const auto n = call.in[0].size(), blocks = ceil_div(n, element_block);
  auto* block_sum = reinterpret_cast<double*>(call.scratch.data());
  launch(call.queue, {.x = ceil_div(blocks, blocks_per_block), .threads = threads}, square_sums, call.in[0].as<float>(),
         call.in[1].as<float>(), n, block_sum);
  sum_in_order(call.queue, block_sum, blocks, call.out[0].as<double>());
}

void mse_loss_grad(const Call& call) {
  const View& dy = call.out[0];
  map(call.queue, call.in[0].size(), dy.as<float>(), Gradient{static_cast<float>(2 * call.attrs->real("scale", 1))},
      static_cast<const float*>(call.in[0].as<float>()), static_cast<const float*>(call.in[1].as<float>()));
}

}  // namespace troupe::kernels::cuda
