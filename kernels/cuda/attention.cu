// Exact causal attention, blockwise with an online softmax: a block of threads for each head and 96 of its queries,
// which passes over their keys (attention.cuh).
#include "kernels/cuda/attention.cuh"

#include "kernels/cuda/bodies.h"
#include "kernels/cuda/exact.cuh"
#include "kernels/exact_math.h"

namespace troupe::kernels::cuda {

namespace {

using namespace heads;

template <int parts>
TROUPE_KERNEL void TROUPE_THREADS(threads, 2)
    attend(Shape s, const float* q, const float* k, const float* v, float* o, float* lse, int shares) {
  Tiles& tiles = shared<Tiles>();
  const int blocks = (s.T + seq_block - 1) / seq_block;
  const Place place(shares, blocks);
  // the last queries, which have the most keys, begin first
  const int b = place.head / s.H, h = place.head % s.H, kv = s.kv_of(h);
  const int q0 = (blocks - 1 - place.rows) * seq_block, d = place.share * most_parts * part;
  if (kv < 0 || kv >= s.KV) return;
  const Rows queries{q + s.q_at(b, q0, h), s.q_ld(), positions_from(q0, s.T)};

  float max = -INFINITY, sum = 0, shrink = 0;  // of_row()
  float out[parts][8][4] = {};
  for (int k0 = 0; k0 <= q0; k0 += seq_block) {
    const bool diagonal = k0 == q0;
    const std::int64_t at = s.kv_at(b, k0, kv);
    const Rows keys{k + at, s.kv_ld(), positions_from(k0, s.T)}, values{v + at, s.kv_ld(), keys.count};
    const Causal causal = Causal::of_queries(diagonal);
    float p[8][6];
    scores(tiles, queries, keys, s.D, p);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < 6; ++j)
        if (causal.key_of_query(e, j)) top = max_of(p[e][j], top);
      for (int bits = 8; bits > 0; bits /= 2) top = max_of(top, shuffle_xor(top, bits));
      const float scaled = top * s.scale, before = of_row(max, e), now = before < scaled ? scaled : before;
      float total = 0;
#pragma unroll
      for (int j = 0; j < 6; ++j) {
        p[e][j] = causal.key_of_query(e, j) ? exp(fmaf(p[e][j], s.scale, -now)) : 0.0f;
        total += p[e][j];
      }
      total = sum_of_sixteen(total);
      if (lane() == e) {
        shrink = exp(max - now);
        max = now;
        sum = sum * shrink + total;
      }
    }
    put_weights(tiles, [&](int e, int j) { return p[e][j]; });
    const Ends ends = ends_of_queries(keys.count, diagonal);
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      float sums[8][4];
      times(tiles, values, d + i * part, s.D, ends, sums);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float f = of_row(shrink, e);
        for (int x = 0; x < 4; ++x) out[i][e][x] *= f;
      }
      add_part(out, i, sums, k0 == 0);
    }
  }
  const float inverse = 1.0f / sum;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float f = of_row(inverse, e);
#pragma unroll
    for (int i = 0; i < parts; ++i)
      for (int x = 0; x < 4; ++x) out[i][e][x] *= f;
  }
  store(out, o + s.q_at(b, q0, h), s.q_ld(), queries.count, d, s.D);
  if (place.share == 0 && lane() < 8 && row_of(lane()) < queries.count)
    lse[s.row_at(b, q0 + row_of(lane()), h)] = max + static_cast<float>(exact::log(static_cast<double>(sum)));
}

}  // namespace

void attention(const Call& call) {
  const View &q = call.in[0], &k = call.in[1], &v = call.in[2];
  const Shape s = shape_of(q, k, call.attrs->integer("head_dim"));
  const int shared_by = shares(s.D);
  const Grid grid{.x = std::int64_t{s.B} * s.H * ceil_div(s.T, seq_block) * shared_by,
                  .threads = threads,
                  .shared_bytes = sizeof(Tiles)};
  launch(call.queue, grid, s.D <= part ? attend<1> : attend<2>, s, q.as<float>(), k.as<float>(), v.as<float>(),
         call.out[0].as<float>(), call.out[1].as<float>(), shared_by);
}

}  // namespace troupe::kernels::cuda
