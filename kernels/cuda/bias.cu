// bias_add and bias_grad.
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/elementwise.cuh"

namespace troupe::kernels::cuda {

namespace {

constexpr int rows_per_thread = 4;

TROUPE_DEVICE float plus(float a, float b) { return a + b; }
TROUPE_DEVICE Float4 plus(Float4 a, Float4 b) {
  Float4 sum;
#pragma unroll
  for (int k = 0; k < 4; ++k) sum.v[k] = a.v[k] + b.v[k];
  return sum;
}

/// T: float, or four of them. A thread has a column of T, whose bias it reads once, and four rows.
template <class T>
TROUPE_KERNEL void TROUPE_THREADS(elementwise_threads)
    add_to_rows(std::int64_t rows, std::int64_t cols, std::int64_t column_blocks, const T* __restrict__ x,
                const T* __restrict__ bias, T* __restrict__ y) {
  const std::int64_t c = block_x() % column_blocks * threads_x() + thread_x();
  const std::int64_t first = block_x() / column_blocks * rows_per_thread;
  if (c >= cols) return;
  const T b = bias[c];
  T v[rows_per_thread];
#pragma unroll
  for (int k = 0; k < rows_per_thread; ++k)
    if (first + k < rows) v[k] = x[(first + k) * cols + c];
#pragma unroll
  for (int k = 0; k < rows_per_thread; ++k)
    if (first + k < rows) y[(first + k) * cols + c] = plus(v[k], b);
}

template <class T>
void add_bias(const Call& call, std::int64_t rows, std::int64_t cols) {
  const int threads =
      static_cast<int>(std::min<std::int64_t>(ceil_div(cols, warp_size) * warp_size, elementwise_threads));
  const std::int64_t column_blocks = ceil_div(cols, std::max(threads, 1));
  launch(call.queue, {.x = ceil_div(rows, rows_per_thread) * column_blocks, .threads = threads}, add_to_rows<T>, rows,
         cols, column_blocks, reinterpret_cast<const T*>(call.in[0].as<float>()),
         reinterpret_cast<const T*>(call.in[1].as<float>()), reinterpret_cast<T*>(call.out[0].as<float>()));
}

struct Gradient {
  const float* dy;
  std::int64_t N;
  TROUPE_DEVICE float operator()(std::int64_t r, std::int64_t c) const { return dy[r * N + c]; }
};

}  // namespace

void bias_add(const Call& call) {
  const auto N = call.in[1].size(), rows = call.in[0].rows();
  const bool fours = N % 4 == 0 && sixteen_bytes_at(call.in[0].data) && sixteen_bytes_at(call.in[1].data) &&
                     sixteen_bytes_at(call.out[0].data);
  if (fours) add_bias<Float4>(call, rows, N / 4);
  else add_bias<float>(call, rows, N);
}

void bias_grad(const Call& call) {
  const View& dy = call.in[0];
  const auto N = call.out[0].size();
  column_sums(call.queue, N ? dy.size() / N : 0, N, terms_of(call.out[0], call.accumulate),
              reinterpret_cast<float*>(call.scratch.data()), Gradient{dy.as<float>(), N});
}

std::int64_t column_sums_scratch(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&) {
  const std::int64_t cols = elements(out[0].shape), rows = cols ? elements(in[0].shape) / cols : 0;
  return column_sums_floats(rows, cols) * size_of(DType::f32);
}

}  // namespace troupe::kernels::cuda
