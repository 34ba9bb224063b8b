// Attention of one token to a ring of keys and values (kernels/cpu/attention_cached.cpp). The blocks of 96 keys are
// attended at the same time, which the written order allows up to one pass per head over what they give: a block's
// maximum and scores; then, with the largest maximum so far, its weights, their sum, and what they make of the values;
// then these are added up in turn.
//
// The state: 64 bytes, which begin with the next position; then for each key-value head its keys [element][slot], so
// that threads which have a key each read them side by side, and its values [slot][element].
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/exact.cuh"

namespace troupe::kernels::cuda {

namespace {

using heads::seq_block;
using heads::Shape;

constexpr int cached_threads = 128;
constexpr std::int64_t header_bytes = 64;

/// The state, and what the kernels hand to one another: for each head and block of keys.
struct Ring {
  std::int64_t* next = nullptr;
  float *keys = nullptr, *values = nullptr;
  std::int64_t window = 0, blocks = 0;  ///< blocks: of a full window
  const std::int32_t* position = nullptr;

  float *scores = nullptr, *sums = nullptr;  ///< [head][block][96], [head][block][element]
  float *max = nullptr, *sum = nullptr, *shrink = nullptr;

  /// Positions that are kept when the token has been put.
  TROUPE_DEVICE std::int64_t kept() const { return *position + std::int64_t{1} < window ? *position + 1 : window; }
  TROUPE_DEVICE int keys_of(std::int64_t block) const {
    const std::int64_t n = kept() - block * seq_block;
    return n < seq_block ? static_cast<int>(n) : seq_block;
  }
};

TROUPE_KERNEL void TROUPE_THREADS(cached_threads) put_token(Shape s, Ring ring, const float* k, const float* v) {
  const std::int64_t i = block_x() * cached_threads + thread_x(), slot = *ring.position % ring.window;
  if (i < s.KV * s.D && slot >= 0) {
    ring.keys[i * ring.window + slot] = k[i];
    ring.values[(i / s.D * ring.window + slot) * s.D + i % s.D] = v[i];
  }
  if (i == 0) *ring.next = *ring.position + std::int64_t{1};
}

/// The largest f(i) for i in [0, n), -inf where there is none; in every lane. All lanes call it.
template <class F>
TROUPE_DEVICE float warp_max(std::int64_t n, F&& f) {
  float top = -INFINITY;
  for (std::int64_t i = thread_x() % warp_size; i < n; i += warp_size) top = max_of(f(i), top);
  for (int bits = 16; bits > 0; bits /= 2) top = max_of(top, shuffle_xor(top, bits));
  return top;
}

TROUPE_KERNEL void TROUPE_THREADS(seq_block) cached_scores(Shape s, Ring ring, const float* q) {
  const auto h = static_cast<int>(block_x() / ring.blocks);
  const std::int64_t block = block_x() % ring.blocks, kv = s.kv_of(h);
  const int n = ring.keys_of(block), t = thread_x();
  if (n <= 0) return;
  float* const scores = ring.scores + block_x() * seq_block;
  if (t < n) {
    const float *key = ring.keys + kv * s.D * ring.window + block * seq_block + t, *query = q + h * s.D;
    float score = 0;
#pragma unroll 8
    for (std::int64_t d = 0; d < s.D; ++d) score = fmaf(query[d], key[d * ring.window], score);
    scores[t] = score;
  }
  sync_block();
  if (t >= warp_size) return;
  const float top = warp_max(n, [=](std::int64_t i) { return scores[i]; });
  if (t == 0) ring.max[block_x()] = top * s.scale;
}

TROUPE_KERNEL void TROUPE_THREADS(cached_threads) cached_values(Shape s, Ring ring) {
  float(&weights)[cached_threads] = shared<float[cached_threads]>();
  const auto h = static_cast<int>(block_x() / ring.blocks);
  const std::int64_t block = block_x() % ring.blocks, kv = s.kv_of(h);
  const int n = ring.keys_of(block), t = thread_x();
  if (n <= 0) return;
  const float* max = ring.max + h * ring.blocks;
  const float before = warp_max(block, [=](std::int64_t i) { return max[i]; });
  const float now = before < max[block] ? max[block] : before;
  const float score = t < n ? ring.scores[block_x() * seq_block + t] : 0.0f;
  weights[t] = t < n ? exp(fmaf(score, s.scale, -now)) : 0.0f;
  sync_block();
  if (t < warp_size) {
    float total = 0;
    for (int j = 0; j < seq_block; j += 16) total += weights[j + t % 16];
    total = sum_of_sixteen(total);
    if (t == 0) {
      ring.sum[block_x()] = total;
      ring.shrink[block_x()] = exp(before - now);
    }
  }
  for (std::int64_t d = t; d < s.D; d += cached_threads) {
    const float* value = ring.values + (kv * ring.window + block * seq_block) * s.D + d;
    float sum = 0;
#pragma unroll 8
    for (int j = 0; j < n; ++j) sum = fmaf(weights[j], value[j * s.D], sum);
    ring.sums[block_x() * s.D + d] = sum;
  }
}

TROUPE_KERNEL void TROUPE_THREADS(cached_threads) cached_sums(Shape s, Ring ring, float* o) {
  const std::int64_t h = block_x(), first = h * ring.blocks, blocks = (ring.kept() + seq_block - 1) / seq_block;
  float sum = 0;
  for (std::int64_t i = first; i < first + blocks; ++i) sum = sum * ring.shrink[i] + ring.sum[i];
  const float f = 1.0f / sum;
  for (std::int64_t d = thread_x(); d < s.D; d += cached_threads) {
    float out = ring.sums[first * s.D + d];
    for (std::int64_t i = first + 1; i < first + blocks; ++i) out = out * ring.shrink[i] + ring.sums[i * s.D + d];
    o[h * s.D + d] = out * f;
  }
}

}  // namespace

std::int64_t attention_cached_scratch(std::span<const TensorType> in, std::span<const TensorType>, const Attrs& attrs) {
  const std::int64_t D = attrs.integer("head_dim"), H = in[0].shape[2] / D;
  return H * ceil_div(attrs.integer("window"), seq_block) * (seq_block + D + 3) * size_of(DType::f32);
}

void attention_cached(const Call& call) {
  const View &q = call.in[0], &k = call.in[1], &v = call.in[2];  // (1, 1, H D), (1, 1, KV D), (1, 1, KV D)
  const std::int64_t window = call.attrs->integer("window");
  const Shape s = heads::shape_of(q, k, call.attrs->integer("head_dim"));
  Ring ring{.next = reinterpret_cast<std::int64_t*>(call.state.data()),
            .keys = reinterpret_cast<float*>(call.state.data() + header_bytes),
            .window = window,
            .blocks = ceil_div(window, seq_block),
            .position = call.in[3].as<std::int32_t>()};
  ring.values = ring.keys + std::int64_t{s.KV} * s.D * window;
  const std::int64_t places = s.H * ring.blocks;
  ring.scores = reinterpret_cast<float*>(call.scratch.data());
  ring.sums = ring.scores + places * seq_block;
  ring.max = ring.sums + places * s.D;
  ring.sum = ring.max + places;
  ring.shrink = ring.sum + places;

  const std::int64_t token_blocks = std::max<std::int64_t>(ceil_div(s.KV * s.D, cached_threads), 1);
  launch(call.queue, {.x = token_blocks, .threads = cached_threads}, put_token, s, ring, k.as<float>(), v.as<float>());
  launch(call.queue, {.x = places, .threads = seq_block}, cached_scores, s, ring, q.as<float>());
  launch(call.queue, {.x = places, .threads = cached_threads, .shared_bytes = cached_threads * sizeof(float)},
         cached_values, s, ring);
  launch(call.queue, {.x = s.H, .threads = cached_threads}, cached_sums, s, ring, call.out[0].as<float>());
}

}  // namespace troupe::kernels::cuda
