// rmsnorm and its gradients. A warp makes a row: its sum has 64 chains, two in each lane (warp_reduce), and lane l
// reads elements l, l + 32, ...; the second reading of a row finds it in a cache.
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/exact.cuh"

namespace troupe::kernels::cuda {

namespace {

constexpr int threads = 256, rows_per_block = threads / warp_size;

TROUPE_KERNEL void TROUPE_THREADS(threads)
    normalize_rows(std::int64_t rows, std::int64_t C, float eps, const float* __restrict__ in,
                   const float* __restrict__ w, float* __restrict__ out, float* __restrict__ rstds) {
  const std::int64_t r = block_x() * rows_per_block + thread_x() / warp_size;
  if (r >= rows) return;
  const float* __restrict__ x = in + r * C;
  float* __restrict__ y = out + r * C;
  const float sum = warp_reduce(C, [=](std::int64_t i) { return x[i] * x[i]; });
  const float mean = sum / static_cast<float>(C), rstd = 1.0f / sqrtf(mean + eps);
#pragma unroll 4
  for (std::int64_t i = thread_x() % warp_size; i < C; i += warp_size) y[i] = x[i] * rstd * w[i];
  if (thread_x() % warp_size == 0) rstds[r] = rstd;
}

/// dx = rstd * (dy w - x * rstd^2 * mean(dy w x))
TROUPE_KERNEL void TROUPE_THREADS(threads)
    normalized_rows_grad(std::int64_t rows, std::int64_t C, const float* __restrict__ dys, const float* __restrict__ in,
                         const float* __restrict__ w, const float* __restrict__ rstds, float* __restrict__ out) {
  const std::int64_t r = block_x() * rows_per_block + thread_x() / warp_size;
  if (r >= rows) return;
  const float* __restrict__ dy = dys + r * C, * __restrict__ x = in + r * C;
  float* __restrict__ dx = out + r * C;
  const float rstd = rstds[r];
  const float dot = warp_reduce(C, [=](std::int64_t i) { return dy[i] * w[i] * x[i]; });
  const float t = -dot * rstd * rstd / static_cast<float>(C);
#pragma unroll 4
  for (std::int64_t i = thread_x() % warp_size; i < C; i += warp_size) dx[i] = rstd * fmaf(x[i], t, dy[i] * w[i]);
}

struct WeightGrad {
  const float *dy, *x, *rstd;
  std::int64_t C;
  TROUPE_DEVICE float operator()(std::int64_t r, std::int64_t c) const {
    return dy[r * C + c] * x[r * C + c] * rstd[r];
  }
};

}  // namespace

void rmsnorm(const Call& call) {
  const View& x = call.in[0];
  launch(call.queue, {.x = ceil_div(x.rows(), rows_per_block), .threads = threads}, normalize_rows, x.rows(), x.cols(),
         static_cast<float>(call.attrs->real("eps", 1e-6)), x.as<float>(), call.in[1].as<float>(),
         call.out[0].as<float>(), call.out[1].as<float>());
}

void rmsnorm_dx(const Call& call) {
  const View& x = call.in[1];
  launch(call.queue, {.x = ceil_div(x.rows(), rows_per_block), .threads = threads}, normalized_rows_grad, x.rows(),
         x.cols(), call.in[0].as<float>(), x.as<float>(), call.in[2].as<float>(), call.in[3].as<float>(),
         call.out[0].as<float>());
}

void rmsnorm_dw(const Call& call) {
  const View& dy = call.in[0];
  const auto C = call.out[0].size();
  column_sums(call.queue, C ? dy.size() / C : 0, C, terms_of(call.out[0], call.accumulate),
              reinterpret_cast<float*>(call.scratch.data()),
              WeightGrad{dy.as<float>(), call.in[1].as<float>(), call.in[2].as<float>(), C});
}

}  // namespace troupe::kernels::cuda
