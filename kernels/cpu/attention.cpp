// Exact causal attention, blockwise with an online softmax (Rabe and Staats 2021; Dao et al. 2022).
#include <cmath>

#include "kernels/cpu/attention_blocks.h"
#include "kernels/exact_math.h"

namespace troupe::kernels::cpu {

using namespace simd;

namespace {

/// The running softmax of up to 96 query rows of one head, over the blocks of its keys.
struct QueryBlock {
  float max[seq_block + width], sum[seq_block + width];
};

}  // namespace

void attention(const Call& call) {
  const View &q = call.in[0], &k = call.in[1], &v = call.in[2];  // (B, T, H D), (B, T, KV D), (B, T, KV D)
  const auto s = HeadShape::of(q, k, call.attrs->integer("head_dim"));
  float *o = call.out[0].as<float>(), *lse = call.out[1].as<float>();  // (B, T, H D), (B, T, H)
  if (q.size() == 0) return;
  call.par->for_each(s.B * s.KV, [&](std::int64_t task) {
    const auto b = task / s.KV, kv = task % s.KV;
    float* const kt = workspace(s.by_position + s.by_element + 2 * seq_block * s.D + width);
    float *const vp = kt + s.by_position, *const qp = vp + s.by_element, *const acc = qp + seq_block * s.D + width;
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
            attend(s, rows, cols, diagonal ? r0 + 1 : 0, qp + r0 * s.D, kt, vp, k0, state.max + r0, state.sum + r0,
                   acc + r0 * s.D);
          }
        }
        for (std::int64_t r = 0; r < qn; ++r) {
          const v16 f = splat(1.0f / state.sum[r]);
          map(
              s.D, o + s.q_at(b, h) + (q0 + r) * s.q_ld, [f](v16 x) { return x * f; }, acc + r * s.D);
          lse[(b * s.T + q0 + r) * s.H + h] = state.max[r] + static_cast<float>(exact::log(state.sum[r]));
        }
      }
  });
}

}  // namespace troupe::kernels::cpu
