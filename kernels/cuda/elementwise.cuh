// One formula per element.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace troupe::kernels::cuda {

inline constexpr int elementwise_threads = 256;

template <class F, class... In>
TROUPE_KERNEL void TROUPE_THREADS(elementwise_threads) map_fours(std::int64_t fours, float* out, F f, In... in) {
  const std::int64_t i = block_x() * elementwise_threads + thread_x();
  if (i >= fours) return;
  Float4 result;
  const auto formula = [&](auto... four) {  // by value: one load of sixteen bytes each
#pragma unroll
    for (int k = 0; k < 4; ++k) result.v[k] = f(four.v[k]...);
  };
  formula(reinterpret_cast<const Float4*>(in)[i]...);
  reinterpret_cast<Float4*>(out)[i] = result;
}

template <class F, class... In>
TROUPE_KERNEL void TROUPE_THREADS(elementwise_threads)
    map_ones(std::int64_t begin, std::int64_t end, float* out, F f, In... in) {
  const std::int64_t i = begin + block_x() * elementwise_threads + thread_x();
  if (i < end) out[i] = f(in[i]...);
}

inline bool sixteen_bytes_at(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

/// out[i] = f(in[i]...) for i in [0, n); `in` are const float*. Sixteen bytes an access where all vectors begin at
/// multiples of that.
template <class F, class... In>
void map(void* queue, std::int64_t n, float* out, F f, In... in) {
  const std::int64_t fours = sixteen_bytes_at(out) && (sixteen_bytes_at(in) && ...) ? n / 4 : 0;
  launch(queue, {.x = ceil_div(fours, elementwise_threads), .threads = elementwise_threads}, map_fours<F, In...>, fours,
         out, f, in...);
  launch(queue, {.x = ceil_div(n - 4 * fours, elementwise_threads), .threads = elementwise_threads}, map_ones<F, In...>,
         4 * fours, n, out, f, in...);
}

}  // namespace troupe::kernels::cuda
