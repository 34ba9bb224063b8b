// Language-model head and loss together, a chunk of rows at a time, as kernels/cpu/lm_head_loss.cpp: products of gemm.h
// and, between them, a warp for each group of a row. The terms of dw are those of the CPU's chunks.
#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/exact.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/softmax_rows.h"
#include "kernels/cuda/sums.h"
#include "kernels/exact_math.h"
#include "kernels/ops.h"

namespace troupe::kernels::cuda {

namespace {

constexpr int threads = 256, warps = threads / warp_size;

/// The largest x(i), which is +0 or -0, as the CPU's order of comparisons finds its sign: sixteen columns, in each of
/// which the first is kept; of two columns the higher. Lane 0 has it.
template <class F>
TROUPE_DEVICE float signed_zero(std::int64_t n, F&& x) {
  float top = -INFINITY;
  for (std::int64_t i = thread_x() % 16; i < n; i += 16) top = max_of(x(i), top);
  for (int bits = 8; bits > 0; bits /= 2) top = max_of(top, shuffle_xor(top, bits));
  return top;
}

/// Scratch for a chunk of logits, whole lines of memory.
std::int64_t logits_floats(std::int64_t V) { return ceil_div(cpu::lm_head_chunk(V) * V, 64) * 64; }

struct StatsArguments {
  const float* logits;         ///< (n, V): rows r0, r0 + 1, .. of `rows`
  const std::int32_t* target;  ///< (n)
  float* stats;                ///< of row r0 and group 0
  std::int64_t n, V, rows, groups, unit, first;
};

/// A warp makes the stats of one group of one row.
TROUPE_KERNEL void TROUPE_THREADS(threads) stats_of_groups(StatsArguments a) {
  const std::int64_t i = block_x() * warps + thread_x() / warp_size, r = i / a.groups, g = i % a.groups;
  if (r >= a.n) return;
  const float* row = a.logits + r * a.V;
  const std::int64_t begin = g * a.unit, count = a.V - begin < a.unit ? a.V - begin : a.unit;
  const auto x = [=](std::int64_t v) { return row[begin + v]; };
  float max, sum;
  warp_max_and_sum(count, x, max, sum);
  if (shuffle(max, 0) == 0) max = signed_zero(count, x);
  if (thread_x() % warp_size != 0) return;
  const std::int64_t t = a.target[r] - a.first - begin;
  float* to = a.stats + (g * a.rows + r) * 3;
  to[0] = max;
  to[1] = sum;
  to[2] = a.target[r] >= 0 && t >= 0 && t < count ? row[begin + t] : 0.0f;
}

/// A thread makes a row of the loss: groups are added in their order.
TROUPE_KERNEL void TROUPE_THREADS(threads) rows_of_loss(const float* stats, std::int64_t groups, std::int64_t rows,
                                                        const std::int32_t* target, float* lse, double* row_loss) {
  const std::int64_t r = block_x() * threads + thread_x();
  if (r >= rows) return;
  float top = -INFINITY;
#pragma unroll 8
  for (std::int64_t g = 0; g < groups; ++g) {
    const float of_group = stats[(g * rows + r) * 3];
    top = top < of_group ? of_group : top;
  }
  double sum = 0, logit = 0;
#pragma unroll 8
  for (std::int64_t g = 0; g < groups; ++g) {
    const float* group = stats + (g * rows + r) * 3;
    sum += static_cast<double>(group[1]) * static_cast<double>(exp(group[0] - top));
    logit += group[2];
  }
  const double whole = exact::log(sum) + top;
  lse[r] = static_cast<float>(whole);
  row_loss[r] = target[r] < 0 ? 0.0 : whole - logit;
}

}  // namespace

void lm_head_stats(const Call& call) {
  const View &x = call.in[0], &w = call.in[1];  // (B, T, C), (V, C)
  const auto V = w.shape[0], C = w.shape[1], rows = call.in[2].size(), chunk = cpu::lm_head_chunk(V);
  const auto unit = vocabulary_unit(w.logical[0], *call.attrs), groups = ceil_div(V, unit);
  float* logits = reinterpret_cast<float*>(call.scratch.data());  // (chunk, V)
  for (std::int64_t r0 = 0; r0 < rows; r0 += chunk) {
    const auto n = std::min(chunk, rows - r0);
    gemm(call.queue, false, true, n, V, C, x.as<float>() + r0 * C, C, w.as<float>(), C, logits, V);
    launch(call.queue, {.x = ceil_div(n * groups, warps), .threads = threads}, stats_of_groups,
           StatsArguments{logits, call.in[2].as<std::int32_t>() + r0, call.out[0].as<float>() + 3 * r0, n, V, rows,
                          groups, unit, w.extent.dims[0].lo});
  }
}

void lm_head_loss(const Call& call) {
  const auto groups = call.in[0].shape[0], rows = call.in[3].size();
  auto* row_loss = reinterpret_cast<double*>(call.scratch.data());
  launch(call.queue, {.x = ceil_div(rows, threads), .threads = threads}, rows_of_loss, call.in[0].as<float>(), groups,
         rows, call.in[3].as<std::int32_t>(), call.out[1].as<float>(), row_loss);
  sum_in_order(call.queue, row_loss, rows, call.out[0].as<double>());
}

void lm_head_loss_grad(const Call& call) {
  const View &x = call.in[0], &w = call.in[1], &dx = call.out[0], &dw = call.out[1];
  // The chunk follows from the whole vocabulary: each part adds terms to dw, whose bits must not depend on the parts.
  const auto V = w.shape[0], C = w.shape[1], rows = call.in[2].size(), chunk = cpu::lm_head_chunk(w.logical[0]);
  const auto* target = call.in[2].as<std::int32_t>();
  const float* lse = call.in[3].as<float>();
  const float scale = static_cast<float>(call.attrs->real("scale", 1));
  const std::span scratch(reinterpret_cast<float*>(call.scratch.data()), call.scratch.size() / sizeof(float));
  float* logits = scratch.data();
  // dx of a chunk has few elements, each a sum over the vocabulary: its blocks of words are made in parallel.
  const auto parts = scratch.subspan(static_cast<std::size_t>(logits_floats(V)));
  Terms terms = terms_of(dw, call.accumulate);
  if (rows == 0) gemm_terms(call.queue, true, false, V, C, 0, logits, V, x.as<float>(), C, terms);
  for (std::int64_t r0 = 0; r0 < rows; r0 += chunk, terms.accumulate = true) {
    const auto n = std::min(chunk, rows - r0);
    const float* part = x.as<float>() + r0 * C;
    gemm(call.queue, false, true, n, V, C, part, C, w.as<float>(), C, logits, V);
    softmax_rows_grad(call.queue, logits, n, V, target + r0, lse + r0, scale, logits, w.extent.dims[0].lo);
    gemm_by_blocks(call.queue, false, false, n, C, V, logits, V, w.as<float>(), C, dx.as<float>() + r0 * C, C, parts);
    gemm_terms(call.queue, true, false, V, C, n, logits, V, part, C, terms);
  }
}

std::int64_t lm_head_loss_grad_scratch(std::span<const TensorType> in, std::span<const TensorType>, const Attrs&) {
  const auto V = in[1].shape[0], C = in[1].shape[1], rows = std::min(elements(in[2].shape), cpu::lm_head_chunk(V));
  return (logits_floats(V) + gemm_by_blocks_floats(rows, C, V)) * size_of(DType::f32);
}

}  // namespace troupe::kernels::cuda
