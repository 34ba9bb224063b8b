// Language-model head and loss together, a chunk of rows at a time: no more than one chunk of logits exists,
// and the gradient makes them again instead of keeping them.
#include <algorithm>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/softmax_row.h"

namespace troupe::kernels::cpu {

std::int64_t lm_head_chunk(std::int64_t V) {
  const std::int64_t rows = (std::int64_t{1} << 18) / std::max<std::int64_t>(V, 1) / 64 * 64;
  return std::clamp<std::int64_t>(rows, 256, 1024);
}

void lm_head_loss(const Call& call) {
  const View &x = call.in[0], &w = call.in[1];  // (B, T, C), (V, C)
  const auto V = w.shape[0], C = w.shape[1], rows = call.in[2].size(), chunk = lm_head_chunk(V);
  const auto* target = call.in[2].as<std::int32_t>();
  float* lse = call.out[1].as<float>();
  auto* row_loss = reinterpret_cast<double*>(call.scratch.data());
  float* logits = reinterpret_cast<float*>(row_loss + chunk);  // (chunk, V)
  double sum = 0;
  for (std::int64_t r0 = 0; r0 < rows; r0 += chunk) {
    const auto n = std::min(chunk, rows - r0);
    gemm(false, true, n, V, C, x.as<float>() + r0 * C, C, w.as<float>(), C, logits, V, 0, *call.par);
    for_blocks(*call.par, n, 32, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) row_loss[r] = softmax_row(logits + r * V, V, target[r0 + r], lse + r0 + r);
    });
    for (std::int64_t r = 0; r < n; ++r) sum += row_loss[r];
  }
  *call.out[0].as<double>() = sum;
}

void lm_head_loss_grad(const Call& call) {
  const View &x = call.in[0], &w = call.in[1], &dx = call.out[0], &dw = call.out[1];
  const auto V = w.shape[0], C = w.shape[1], rows = call.in[2].size(), chunk = lm_head_chunk(V);
  const auto* target = call.in[2].as<std::int32_t>();
  const float* lse = call.in[3].as<float>();
  const float scale = static_cast<float>(call.attrs->real("scale", 1));
  float* logits = reinterpret_cast<float*>(reinterpret_cast<double*>(call.scratch.data()) + chunk);
  float beta = call.accumulate ? 1.0f : 0.0f;
  if (rows == 0) gemm(true, false, V, C, 0, logits, V, x.as<float>(), C, dw.as<float>(), C, beta, *call.par);
  for (std::int64_t r0 = 0; r0 < rows; r0 += chunk, beta = 1) {
    const auto n = std::min(chunk, rows - r0);
    const float* part = x.as<float>() + r0 * C;
    gemm(false, true, n, V, C, part, C, w.as<float>(), C, logits, V, 0, *call.par);
    for_blocks(*call.par, n, 32, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r)
        softmax_row_grad(logits + r * V, V, target[r0 + r], lse[r0 + r], scale, logits + r * V);
    });
    gemm(false, false, n, C, V, logits, V, w.as<float>(), C, dx.as<float>() + r0 * C, C, 0, *call.par);
    gemm(true, false, V, C, n, logits, V, part, C, dw.as<float>(), C, beta, *call.par);
  }
}

}  // namespace troupe::kernels::cpu
