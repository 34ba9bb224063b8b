// Language-model head and loss together, a chunk of rows at a time: no more than one chunk of logits exists,
// and the gradient makes them again instead of keeping them. A place may have only some groups of the vocabulary.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/softmax_row.h"
#include "kernels/exact_math.h"
#include "kernels/ops.h"

namespace troupe::kernels::cpu {

std::int64_t lm_head_chunk(std::int64_t V) {
  const std::int64_t rows = (std::int64_t{1} << 18) / std::max<std::int64_t>(V, 1) / 64 * 64;
  return std::clamp<std::int64_t>(rows, 256, 1024);
}

void lm_head_stats(const Call& call) {
  const View &x = call.in[0], &w = call.in[1];  // (B, T, C), (V, C)
  const auto V = w.shape[0], C = w.shape[1], rows = call.in[2].size(), chunk = lm_head_chunk(V);
  const auto first = w.extent.dims[0].lo, u = vocabulary_unit(w.logical[0], *call.attrs);
  const auto* target = call.in[2].as<std::int32_t>();
  float* stats = call.out[0].as<float>();                         // (G, rows, 3)
  float* logits = reinterpret_cast<float*>(call.scratch.data());  // (chunk, V)
  for (std::int64_t r0 = 0; r0 < rows; r0 += chunk) {
    const auto n = std::min(chunk, rows - r0);
    gemm(false, true, n, V, C, x.as<float>() + r0 * C, C, w.as<float>(), C, logits, V, *call.par);
    for_blocks(*call.par, n, 32, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r) {
        const float* row = logits + r * V;
        const auto group = [&](std::int64_t g) { return stats + (g * rows + r0 + r) * 3; };
        for (std::int64_t v = 0, g = 0; v < V; v += u, ++g) {
          const auto [top, sum] = max_and_sum(row + v, std::min(u, V - v));
          group(g)[0] = top;
          group(g)[1] = sum;
          group(g)[2] = 0;
        }
        const std::int64_t t = target[r0 + r] - first;
        if (target[r0 + r] >= 0 && t >= 0 && t < V) group(t / u)[2] = row[t];
      }
    });
  }
}

void lm_head_loss(const Call& call) {
  const auto groups = call.in[0].shape[0], rows = call.in[3].size();
  const auto* target = call.in[3].as<std::int32_t>();
  const float* stats = call.in[0].as<float>();  // (G, rows, 3)
  float* lse = call.out[1].as<float>();
  auto* row_loss = reinterpret_cast<double*>(call.scratch.data());
  for_blocks(*call.par, rows, simd::width, [&](std::int64_t begin, std::int64_t end) {
    const auto n = end - begin;
    float top[simd::width];
    double sum[simd::width] = {}, logit[simd::width] = {};
    std::fill_n(top, simd::width, -INFINITY);
    for (std::int64_t g = 0; g < groups; ++g) {
      const float* group = stats + (g * rows + begin) * 3;
      for (std::int64_t i = 0; i < n; ++i) top[i] = std::max(top[i], group[3 * i]);
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      const float* group = stats + (g * rows + begin) * 3;
      simd::v16 weight = {};
      for (std::int64_t i = 0; i < n; ++i) weight[i] = group[3 * i] - top[i];
      weight = simd::exp(weight);
      for (std::int64_t i = 0; i < n; ++i) {
        sum[i] += double{group[3 * i + 1]} * double{weight[i]};
        logit[i] += group[3 * i + 2];
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const double whole = exact::log(sum[i]) + top[i];
      lse[begin + i] = static_cast<float>(whole);
      row_loss[begin + i] = target[begin + i] < 0 ? 0.0 : whole - logit[i];
    }
  });
  double sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) sum += row_loss[r];
  *call.out[0].as<double>() = sum;
}

void lm_head_loss_grad(const Call& call) {
  const View &x = call.in[0], &w = call.in[1], &dx = call.out[0], &dw = call.out[1];
  // The chunk follows from the whole vocabulary: each part adds terms to dw, whose bits must not depend on the parts.
  const auto V = w.shape[0], C = w.shape[1], rows = call.in[2].size(), chunk = lm_head_chunk(w.logical[0]);
  const auto first = w.extent.dims[0].lo;
  const auto* target = call.in[2].as<std::int32_t>();
  const float* lse = call.in[3].as<float>();
  const float scale = static_cast<float>(call.attrs->real("scale", 1));
  float* logits = reinterpret_cast<float*>(call.scratch.data());
  Terms terms = terms_of(dw, call.accumulate);
  if (rows == 0) gemm_terms(true, false, V, C, 0, logits, V, x.as<float>(), C, terms, *call.par);
  for (std::int64_t r0 = 0; r0 < rows; r0 += chunk, terms.accumulate = true) {
    const auto n = std::min(chunk, rows - r0);
    const float* part = x.as<float>() + r0 * C;
    gemm(false, true, n, V, C, part, C, w.as<float>(), C, logits, V, *call.par);
    for_blocks(*call.par, n, 32, [&](std::int64_t begin, std::int64_t end) {
      for (auto r = begin; r < end; ++r)
        softmax_row_grad(logits + r * V, V, target[r0 + r], lse[r0 + r], scale, logits + r * V, first);
    });
    gemm(false, false, n, C, V, logits, V, w.as<float>(), C, dx.as<float>() + r0 * C, C, *call.par);
    gemm_terms(true, false, V, C, n, logits, V, part, C, terms, *call.par);
  }
}

}  // namespace troupe::kernels::cpu
