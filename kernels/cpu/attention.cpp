// Exact causal attention, blockwise with an online softmax (Rabe and Staats 2021; Dao et al. 2022).
#include <cmath>

#include "kernels/cpu/attention_blocks.h"

namespace troupe::kernels::cpu {

using namespace simd;

namespace {

/// The state of up to 96 query rows of one head while its keys pass by.
struct QueryBlock {
  float max[seq_block + lanes], sum[seq_block + lanes];
};

/// scores (rows, seq_block) become exp(scale * score - running max); answers by how much older sums shrink.
void softmax_panel(float* scores, std::int64_t rows, std::int64_t cols, std::int64_t first_valid, bool diagonal,
                   float scale, float* run_max, float* run_sum, v16& shrink) {
  float now[lanes] = {}, before[lanes] = {};
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * seq_block;
    const std::int64_t valid = diagonal ? first_valid + r : cols;
    v16 top = splat(-INFINITY);
    for (std::int64_t j = 0; j < valid; j += lanes) top = max(below(j, valid) ? load(row + j) : splat(-INFINITY), top);
    before[r] = run_max[r];
    now[r] = std::max(run_max[r], max(top) * scale);
    run_max[r] = now[r];
    const v16 s = splat(scale), m = splat(-now[r]);
    v16 total{};
    for (std::int64_t j = 0; j < cols; j += lanes) {
      const v16 p = below(j, valid) ? exp(fma(load(row + j), s, m)) : v16{};
      store(row + j, p);
      total += p;
    }
    const float old = run_sum[r];
    run_sum[r] = sum(total);
    before[r] -= now[r];
    now[r] = old;
  }
  shrink = exp(load(before));
  for (std::int64_t r = 0; r < rows; ++r) run_sum[r] = now[r] * shrink[r] + run_sum[r];
}

}  // namespace

void attention(const Call& call) {
  const View &q = call.in[0], &k = call.in[1], &v = call.in[2];  // (B, T, H D), (B, T, KV D), (B, T, KV D)
  const auto s = HeadShape::of(q, k, call.attrs->integer("head_dim"));
  float *o = call.out[0].as<float>(), *lse = call.out[1].as<float>();  // (B, T, H D), (B, T, H)
  if (q.size() == 0) return;
  call.par->for_each(s.B * s.KV, [&](std::int64_t task) {
    const auto b = task / s.KV, kv = task % s.KV;
    float* const kt = workspace(s.by_position + s.by_element + 2 * seq_block * s.D + lanes);
    float *const vp = kt + s.by_position, *const qp = vp + s.by_element, *const acc = qp + seq_block * s.D + lanes;
    alignas(64) float scores[panel_rows * seq_block];
    QueryBlock state;
    s.pack_positions(k.as<float>() + s.kv_at(b, kv), s.kv_ld, kt);
    s.pack_elements(v.as<float>() + s.kv_at(b, kv), s.kv_ld, vp);

    const Range heads = s.queries_of(kv);
    for (std::int64_t h = heads.lo; h < heads.hi; ++h)
      for (std::int64_t q0 = 0; q0 < s.T; q0 += seq_block) {
        const auto qn = std::min(seq_block, s.T - q0);
        pack<panel_rows>(false, q.as<float>() + s.q_at(b, h) + q0 * s.q_ld, s.q_ld, qn, qn, s.D, qp);
        std::fill_n(state.max, seq_block, -INFINITY);
        std::fill_n(state.sum, seq_block, 0.0f);
        for (std::int64_t k0 = 0; k0 <= q0; k0 += seq_block) {
          const bool diagonal = k0 == q0;
          const auto kn = std::min(seq_block, s.T - k0);
          for (std::int64_t r0 = 0; r0 < qn; r0 += panel_rows) {
            const auto rows = std::min(panel_rows, qn - r0), cols = diagonal ? std::min(kn, r0 + panel_rows) : kn;
            float* const out = acc + r0 * s.D;
            v16 shrink;
            head_scores(s, rows, cols, qp + r0 * s.D, kt, k0, scores);
            softmax_panel(scores, rows, cols, r0 + 1, diagonal, s.scale, state.max + r0, state.sum + r0, shrink);
            for (std::int64_t r = 0; r < rows && k0 > 0; ++r) {
              const v16 f = splat(shrink[r]);
              map(s.D, out + r * s.D, [f](v16 x) { return x * f; }, out + r * s.D);
            }
            times_head<seq_block, 1>(s, rows, cols, scores, vp, k0, out, s.D, k0 > 0);
          }
        }
        for (std::int64_t r = 0; r < qn; ++r) {
          const v16 f = splat(1.0f / state.sum[r]);
          map(s.D, o + s.q_at(b, h) + (q0 + r) * s.q_ld, [f](v16 x) { return x * f; }, acc + r * s.D);
          lse[(b * s.T + q0 + r) * s.H + h] = state.max[r] + std::log(state.sum[r]);
        }
      }
  });
}

}  // namespace troupe::kernels::cpu
