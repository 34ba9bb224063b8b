// Gradient of attention: scores are made again from q, k and lse, block by block (Dao et al. 2022).
//
//   P = exp(scale S - lse)   dV = P^T dO   dS = scale P (dO V^T - rowsum(dO O))   dQ = dS K   dK = dS^T Q
//
// The gradient of a key-value head adds its query heads in order, and of each query head its query blocks in order.
#include <cmath>

#include "kernels/cpu/attention_blocks.h"

namespace troupe::kernels::cpu {

using namespace simd;

namespace {

/// One row: scores become P, grads (dO V^T) become dS. Zeros from `valid` to `cols`.
void score_gradient(float* scores, float* grads, std::int64_t valid, std::int64_t cols, float scale, float lse,
                    float delta) {
  const v16 f = splat(scale), m = splat(-lse), d = splat(delta);
  for (std::int64_t j = 0; j < cols; j += width) {
    const auto keep = below(j, valid);
    const v16 p = keep ? exp(fma(load(scores + j), f, m)) : v16{};
    store(scores + j, p);
    store(grads + j, keep ? p * (load(grads + j) - d) * f : v16{});
  }
}

}  // namespace

void attention_grad(const Call& call) {
  const View &d_o = call.in[0], &q = call.in[1], &k = call.in[2], &v = call.in[3], &o = call.in[4];
  const float* lse = call.in[5].as<float>();  // (B, T, H)
  const auto s = HeadShape::of(q, k, call.attrs->integer("head_dim"));
  call.par->for_each(s.B * s.KV, [&](std::int64_t task) {
    const auto b = task / s.KV, kv = task % s.KV;
    float* const kt = workspace(2 * s.by_position + 3 * s.by_element + 2 * (seq_block * s.D + width) +
                                2 * seq_block * seq_block + seq_block);
    float *const vt = kt + s.by_position, *const kp = vt + s.by_position;
    float *const q_all = kp + s.by_element, *const do_all = q_all + s.by_element;
    float *const qp = do_all + s.by_element, *const dop = qp + seq_block * s.D + width;
    float *const scores = dop + seq_block * s.D + width, *const grads = scores + seq_block * seq_block;
    float* const delta = grads + seq_block * seq_block;
    s.pack_positions(k.as<float>() + s.kv_at(b, kv), s.kv_ld, kt);
    s.pack_positions(v.as<float>() + s.kv_at(b, kv), s.kv_ld, vt);
    s.pack_elements(k.as<float>() + s.kv_at(b, kv), s.kv_ld, kp);
    float *const dk = call.out[1].as<float>() + s.kv_at(b, kv), *const dv = call.out[2].as<float>() + s.kv_at(b, kv);

    const Range heads = s.queries_of(kv);
    for (std::int64_t t = 0; t < s.T && heads.lo == heads.hi; ++t) {  // none of its queries are here
      std::fill_n(dk + t * s.kv_ld, s.D, 0.0f);
      std::fill_n(dv + t * s.kv_ld, s.D, 0.0f);
    }
    for (std::int64_t h = heads.lo; h < heads.hi; ++h) {
      const auto at = s.q_at(b, h);
      const float *qh = q.as<float>() + at, *oh = o.as<float>() + at, *doh = d_o.as<float>() + at;
      float* const dq = call.out[0].as<float>() + at;
      s.pack_elements(qh, s.q_ld, q_all);
      s.pack_elements(doh, s.q_ld, do_all);
      for (std::int64_t q0 = 0; q0 < s.T; q0 += seq_block) {
        const auto qn = std::min(seq_block, s.T - q0);
        pack<panel_rows>(false, qh + q0 * s.q_ld, s.q_ld, qn, qn, s.D, qp);
        pack<panel_rows>(false, doh + q0 * s.q_ld, s.q_ld, qn, qn, s.D, dop);
        for (std::int64_t r = 0; r < qn; ++r)
          delta[r] = reduce(
              s.D, [](v16 x, v16 y) { return x * y; }, doh + (q0 + r) * s.q_ld, oh + (q0 + r) * s.q_ld);
        for (std::int64_t k0 = 0; k0 <= q0; k0 += seq_block) {
          const bool diagonal = k0 == q0;
          const auto kn = std::min(seq_block, s.T - k0);
          for (std::int64_t r0 = 0; r0 < qn; r0 += panel_rows) {
            const auto rows = std::min(panel_rows, qn - r0), cols = diagonal ? std::min(kn, r0 + panel_rows) : kn;
            float *const sc = scores + r0 * seq_block, *const gr = grads + r0 * seq_block;
            head_scores(s, rows, cols, qp + r0 * s.D, kt, k0, sc);
            head_scores(s, rows, cols, dop + r0 * s.D, vt, k0, gr);
            for (std::int64_t r = 0; r < rows; ++r)
              score_gradient(sc + r * seq_block, gr + r * seq_block, diagonal ? r0 + r + 1 : cols, cols, s.scale,
                             lse[(b * s.T + q0 + r0 + r) * s.H + h], delta[r0 + r]);
            times_head<seq_block, 1>(s, rows, cols, gr, kp, k0, dq + (q0 + r0) * s.q_ld, s.q_ld, k0 > 0);
          }
          const bool add = h > heads.lo || !diagonal;  // a key's first query block is its own
          for (std::int64_t c0 = 0; c0 < kn; c0 += panel_rows) {
            // On the diagonal, queries before c0 see none of these keys.
            const auto keys = std::min(panel_rows, kn - c0), skip = diagonal ? c0 : 0;
            const auto from = skip * seq_block + c0, to = (k0 + c0) * s.kv_ld;
            times_head<1, seq_block>(s, keys, qn - skip, scores + from, do_all, q0 + skip, dv + to, s.kv_ld, add);
            times_head<1, seq_block>(s, keys, qn - skip, grads + from, q_all, q0 + skip, dk + to, s.kv_ld, add);
          }
        }
      }
    }
  });
}

}  // namespace troupe::kernels::cpu
