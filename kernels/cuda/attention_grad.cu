// Gradient of attention (kernels/cpu/attention_grad.cpp), from scores that are made again. dQ: a block of threads for
// each head and 96 of its queries, over their keys. dK and dV: a block of threads each for every key-value head and 96
// of its keys, over the query heads of its group and their queries, which the written order adds one after the other;
// two kernels, since the sums of both would fill the registers, although each then makes P.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/exact.cuh"

namespace troupe::kernels::cuda {

namespace {

using namespace heads;

struct Inputs {
  const float *d_o, *q, *k, *v, *lse, *delta;  ///< delta (B, T, H): rowsum(dO O)
};

constexpr int delta_threads = 256;

TROUPE_KERNEL void TROUPE_THREADS(delta_threads)
    row_products(const float* d_o, const float* o, std::int64_t rows, std::int64_t D, float* delta) {
  const std::int64_t row = block_x() * (delta_threads / warp_size) + thread_x() / warp_size;
  if (row >= rows) return;
  const float *x = d_o + row * D, *y = o + row * D;
  const float sum = warp_reduce(D, [=](std::int64_t i) { return x[i] * y[i]; });
  if (thread_x() % warp_size == 0) delta[row] = sum;
}

/// lse and delta of `count` queries, `ld` floats from one to the next. The threads see them after a barrier.
TROUPE_DEVICE void put_rows(Tiles& tiles, const Inputs& in, std::int64_t at, int ld, int count) {
  const int r = thread_x();
  if (r >= seq_block) return;
  tiles.lse[r] = r < count ? in.lse[at + r * ld] : 0.0f;
  tiles.delta[r] = r < count ? in.delta[at + r * ld] : 0.0f;
}

template <int parts>
TROUPE_KERNEL void TROUPE_THREADS(threads, 2) query_gradient(Shape s, Inputs in, float* dq, int shares) {
  Tiles& tiles = shared<Tiles>();
  const int blocks = (s.T + seq_block - 1) / seq_block;
  const Place place(shares, blocks);
  // the last queries, which have the most keys, begin first
  const int b = place.head / s.H, h = place.head % s.H, kv = s.kv_of(h);
  const int q0 = (blocks - 1 - place.rows) * seq_block, d = place.share * most_parts * part;
  if (kv < 0 || kv >= s.KV) return;
  const int count = positions_from(q0, s.T);
  put_rows(tiles, in, s.row_at(b, q0, h), s.H, count);
  if (thread_x() == 0) tiles.queries = s.q_at(b, q0, h);

  float out[parts][8][4] = {};
  for (int k0 = 0; k0 <= q0; k0 += seq_block) {
    sync_block();
    const Rows queries{in.q + tiles.queries, s.q_ld(), count}, grads{in.d_o + tiles.queries, s.q_ld(), count};
    const bool diagonal = k0 == q0;
    const std::int64_t at = s.kv_at(b, k0, kv);
    const Rows keys{in.k + at, s.kv_ld(), positions_from(k0, s.T)}, values{in.v + at, s.kv_ld(), keys.count};
    float w[8][6];
    scores(tiles, queries, keys, s.D, w);
    // P, to be read by this thread: in registers there is no room for it
    put_weights(tiles, [&](int e, int j) { return exp(fmaf(w[e][j], s.scale, -tiles.lse[row_of(e)])); });
    scores(tiles, grads, values, s.D, w);
    const Causal causal = Causal::of_queries(diagonal);
    map_weights(tiles, [&](float p, int e, int j) {
      return causal.key_of_query(e, j) ? p * (w[e][j] - tiles.delta[row_of(e)]) * s.scale : 0.0f;
    });
    const Ends ends = ends_of_queries(keys.count, diagonal);
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      float sums[8][4];
      times(tiles, keys, d + i * part, s.D, ends, sums);
      add_part(out, i, sums, k0 == 0);
    }
  }
  store(out, dq + tiles.queries, s.q_ld(), count, d, s.D);
}

/// of_values: dV = P^T dO; else dK = dS^T Q.
template <int parts, bool of_values>
TROUPE_KERNEL void TROUPE_THREADS(threads, 2) key_gradient(Shape s, Inputs in, float* to, int shares) {
  Tiles& tiles = shared<Tiles>();
  const Place place(shares, (s.T + seq_block - 1) / seq_block);
  const int b = place.head / s.KV, kv = place.head % s.KV;
  const int k0 = place.rows * seq_block, d = place.share * most_parts * part;
  const std::int64_t at = s.kv_at(b, k0, kv);
  const Rows keys{in.k + at, s.kv_ld(), positions_from(k0, s.T)}, values{in.v + at, s.kv_ld(), keys.count};

  float out[parts][8][4] = {};  // where none of its queries are here, zeros
  bool first = true;
  const int end = s.queries_from(kv + 1);
  for (int h = s.queries_from(kv); h < end; ++h)
    for (int q0 = k0; q0 < s.T; q0 += seq_block) {
      const bool diagonal = k0 == q0;
      const std::int64_t from = s.q_at(b, q0, h);
      const Rows queries{in.q + from, s.q_ld(), positions_from(q0, s.T)}, grads{in.d_o + from, s.q_ld(), queries.count};
      put_rows(tiles, in, s.row_at(b, q0, h), s.H, queries.count);
      const Causal causal = Causal::of_keys(diagonal);
      float w[8][6];
      scores(tiles, keys, queries, s.D, w);
      put_weights(tiles, [&](int e, int j) {
        return causal.query_of_key(e, j) ? exp(fmaf(w[e][j], s.scale, -tiles.lse[column_of(j)])) : 0.0f;
      });
      if constexpr (!of_values) {  // P was put to be read by this thread: in registers there is no room for it
        scores(tiles, values, grads, s.D, w);
        map_weights(tiles, [&](float p, int e, int j) {
          return causal.query_of_key(e, j) ? p * (w[e][j] - tiles.delta[column_of(j)]) * s.scale : 0.0f;
        });
      }
      const Ends ends = ends_of_keys(queries.count, diagonal);
#pragma unroll
      for (int i = 0; i < parts; ++i) {
        float sums[8][4];
        times(tiles, of_values ? grads : queries, d + i * part, s.D, ends, sums);
        add_part(out, i, sums, first);
      }
      first = false;
    }
  store(out, to + at, s.kv_ld(), keys.count, d, s.D);
}

}  // namespace

std::int64_t attention_grad_scratch(std::span<const TensorType> in, std::span<const TensorType>, const Attrs&) {
  return elements(in[5].shape) * size_of(DType::f32);
}

void attention_grad(const Call& call) {
  const View &d_o = call.in[0], &q = call.in[1], &k = call.in[2], &v = call.in[3], &o = call.in[4], &lse = call.in[5];
  const Shape s = shape_of(q, k, call.attrs->integer("head_dim"));
  auto* const delta = reinterpret_cast<float*>(call.scratch.data());
  const int shared_by = shares(s.D);
  const std::int64_t rows = std::int64_t{s.B} * s.T * s.H, blocks = ceil_div(s.T, seq_block) * shared_by;
  launch(call.queue, {.x = ceil_div(rows, delta_threads / warp_size), .threads = delta_threads}, row_products,
         d_o.as<float>(), o.as<float>(), rows, s.D, delta);
  const Inputs in{d_o.as<float>(), q.as<float>(), k.as<float>(), v.as<float>(), lse.as<float>(), delta};
  const bool small = s.D <= part;
  Grid grid{.x = std::int64_t{s.B} * s.H * blocks, .threads = threads, .shared_bytes = sizeof(Tiles)};
  launch(call.queue, grid, small ? query_gradient<1> : query_gradient<2>, s, in, call.out[0].as<float>(), shared_by);
  grid.x = std::int64_t{s.B} * s.KV * blocks;
  launch(call.queue, grid, small ? key_gradient<1, false> : key_gradient<2, false>, s, in, call.out[1].as<float>(),
         shared_by);
  launch(call.queue, grid, small ? key_gradient<1, true> : key_gradient<2, true>, s, in, call.out[2].as<float>(),
         shared_by);
}

}  // namespace troupe::kernels::cuda
