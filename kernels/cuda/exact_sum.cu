// Exact sums: terms in, sums added, rounded gradients out; the op accumulate; and the sum of two f32 vectors.
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/terms.cuh"
#include "kernels/cuda/vector.cuh"

namespace troupe::kernels::cuda {

namespace {

TROUPE_KERNEL void TROUPE_THREADS(vector_threads) put_terms(TermTarget to, const float* terms, Items items) {
  TermWriter writer{to};
  for_items(items, [&](std::int64_t i, auto count) {
    constexpr int n = decltype(count)::value;
    float term[n];
    load(terms + i, term);
    if (to.sums) {
      std::uint64_t sum[n] = {};
      if (to.accumulate) load(to.sums + i, sum);
#pragma unroll
      for (int k = 0; k < n; ++k) sum[k] += to_count(term[k], to.scale);
      store(to.sums + i, sum);
    } else {
      if (to.accumulate) {
        float before[n];
        load(to.values + i, before);
#pragma unroll
        for (int k = 0; k < n; ++k) term[k] = before[k] + term[k];
      }
      store(to.values + i, term);
    }
#pragma unroll
    for (int k = 0; k < n; ++k) writer.see(term[k]);
  });
  writer.raise_peak();
}

void put_terms(const Terms& to, const float* terms, std::int64_t n, void* queue) {
  const void* out = to.sums ? static_cast<const void*>(to.sums) : to.values;
  const Items items = items_of(n, sixteen_bytes_at(out) && sixteen_bytes_at(terms));
  launch(queue, vector_grid(items.count()), static_cast<void (*)(TermTarget, const float*, Items)>(put_terms),
         term_target(to), terms, items);
}

TROUPE_KERNEL void TROUPE_THREADS(vector_threads)
    sum_counts(std::int64_t* into, const std::int64_t* from, Items items) {
  for_items(items, [&](std::int64_t i, auto count) {
    constexpr int n = decltype(count)::value;
    std::uint64_t sum[n], other[n];
    load(into + i, sum);
    load(from + i, other);
#pragma unroll
    for (int k = 0; k < n; ++k) sum[k] += other[k];  // wraps around
    store(into + i, sum);
  });
}

TROUPE_KERNEL void TROUPE_THREADS(vector_threads) round_counts(float* out, SummedGradient g, Items items) {
  for_items(items, [&](std::int64_t i, auto count) {
    float value[decltype(count)::value];
    g.get(i, value);
    store(out + i, value);
  });
}

struct Sum {
  TROUPE_DEVICE float operator()(float x, float y) const { return x + y; }
};

}  // namespace

void accumulate(const Call& call) {
  put_terms(terms_of(call.out[0], call.accumulate), call.in[0].as<float>(), call.out[0].size(), call.queue);
}

void add_terms(std::int64_t* sums, const float* terms, std::int64_t n, std::int32_t exponent, bool accumulate,
               void* queue) {
  put_terms({.sums = sums, .exponent = exponent, .accumulate = accumulate, .ld = n}, terms, n, queue);
}

void add_sums(std::int64_t* into, const std::int64_t* from, std::int64_t n, void* queue) {
  const Items items = items_of(n, sixteen_bytes_at(into) && sixteen_bytes_at(from));
  launch(queue, vector_grid(items.count()), sum_counts, into, from, items);
}

void round_sums(float* out, const Gradient& g, std::int64_t n, void* queue) {
  if (n == 0) return;
  if (g.rounded) return copy(queue, out, g.rounded, n * 4);
  const Items items = items_of(n, sixteen_bytes_at(out) && sixteen_bytes_at(g));
  launch(queue, vector_grid(items.count()), round_counts, out, summed_gradient(g), items);
}

void add_into(float* dst, const float* src, std::int64_t n, void* queue) { map(queue, n, dst, Sum{}, dst, src); }

}  // namespace troupe::kernels::cuda
