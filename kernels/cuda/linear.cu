// Linear layers are one matrix product each; w is (N, K).
#include <algorithm>

#include "kernels/cuda/bodies.h"
#include "kernels/cuda/gemm.h"

namespace troupe::kernels::cuda {

void linear(const Call& call) {  // y (M, N) = x (M, K) w^T
  const View &x = call.in[0], &w = call.in[1], &y = call.out[0];
  const auto N = w.shape[0], K = w.shape[1], M = y.size() / std::max<std::int64_t>(N, 1);
  gemm(call.queue, false, true, M, N, K, x.as<float>(), K, w.as<float>(), K, y.as<float>(), N);
}

void linear_dx(const Call& call) {  // dx (M, K) = dy (M, N) w
  const View &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
  const auto N = w.shape[0], K = w.shape[1], M = dx.size() / std::max<std::int64_t>(K, 1);
  gemm(call.queue, false, false, M, K, N, dy.as<float>(), N, w.as<float>(), K, dx.as<float>(), K);
}

void linear_dw(const Call& call) {  // terms of dw (N, K): dy^T (N, M) x (M, K)
  const View &dy = call.in[0], &x = call.in[1], &dw = call.out[0];
  const auto N = dw.shape[0], K = dw.shape[1];
  const auto M = N ? dy.size() / N : 0;
  gemm_terms(call.queue, true, false, N, K, M, dy.as<float>(), N, x.as<float>(), K, terms_of(dw, call.accumulate));
}

}  // namespace troupe::kernels::cuda
