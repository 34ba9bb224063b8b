// Long vectors, four elements a thread, and gradients as norms and updates read them.
#pragma once

#include <type_traits>

#include "devices/base/check.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/terms.cuh"
#include "kernels/cuda/vector.h"

namespace troupe::kernels::cuda {

inline constexpr int vector_threads = 256;
/// As many blocks as an H200 runs at a time: 132 processors of 2048 threads. Threads go on to other elements, so that
/// what a block does once (a peak, a sum of its threads) is done seldom.
inline constexpr std::int64_t vector_blocks = 132 * 8;

inline Grid vector_grid(std::int64_t items) {
  return {.x = std::min(ceil_div(items, vector_threads), vector_blocks), .threads = vector_threads};
}

/// Calls f(i) for the thread's share of [0, n).
template <class F>
TROUPE_DEVICE void for_mine(std::int64_t n, F&& f) {
  for (std::int64_t i = block_x() * vector_threads + thread_x(); i < n; i += blocks_x() * vector_threads) f(i);
}

/// Elements [0, n): `fours` groups of four that begin at multiples of sixteen bytes, then one by one.
struct Items {
  std::int64_t n, fours;
  std::int64_t count() const { return n - 3 * fours; }
};
inline Items items_of(std::int64_t n, bool aligned) { return {n, aligned ? n / 4 : 0}; }

/// Calls f(i, count) for the thread's share of the items: elements [i, i + count), `count` a constant, 4 or 1.
template <class F>
TROUPE_DEVICE void for_items(const Items& items, F&& f) {
  for_mine(items.n - 3 * items.fours, [&](std::int64_t i) {
    if (i < items.fours) f(4 * i, std::integral_constant<int, 4>());
    else f(3 * items.fours + i, std::integral_constant<int, 1>());
  });
}

struct alignas(16) TwoCounts {
  std::uint64_t v[2];
};

// The elements of an item.
TROUPE_DEVICE void load(const float* p, float (&v)[1]) { v[0] = *p; }
TROUPE_DEVICE void load(const float* p, float (&v)[4]) {
  const Float4 four = *reinterpret_cast<const Float4*>(p);
#pragma unroll
  for (int k = 0; k < 4; ++k) v[k] = four.v[k];
}
TROUPE_DEVICE void store(float* p, const float (&v)[1]) { *p = v[0]; }
TROUPE_DEVICE void store(float* p, const float (&v)[4]) {
  *reinterpret_cast<Float4*>(p) = Float4{{v[0], v[1], v[2], v[3]}};
}
TROUPE_DEVICE void load(const std::int64_t* p, std::uint64_t (&v)[1]) { v[0] = static_cast<std::uint64_t>(*p); }
TROUPE_DEVICE void load(const std::int64_t* p, std::uint64_t (&v)[4]) {
  const auto* twos = reinterpret_cast<const TwoCounts*>(p);
  const TwoCounts low = twos[0], high = twos[1];
  v[0] = low.v[0], v[1] = low.v[1], v[2] = high.v[0], v[3] = high.v[1];
}
TROUPE_DEVICE void store(std::int64_t* p, const std::uint64_t (&v)[1]) { *p = static_cast<std::int64_t>(v[0]); }
TROUPE_DEVICE void store(std::int64_t* p, const std::uint64_t (&v)[4]) {
  auto* twos = reinterpret_cast<TwoCounts*>(p);
  twos[0] = TwoCounts{{v[0], v[1]}};
  twos[1] = TwoCounts{{v[2], v[3]}};
}

/// A Gradient that is f32 already.
struct RoundedGradient {
  const float* from;
  template <int n>
  TROUPE_DEVICE void get(std::int64_t i, float (&v)[n]) const {
    load(from + i, v);
  }
};
/// A Gradient of exact sums.
struct SummedGradient {
  const std::int64_t* sums[gradient_uses_max];
  int uses;
  double unit;
  template <int n>
  TROUPE_DEVICE void get(std::int64_t i, float (&v)[n]) const {
    std::uint64_t sum[n] = {};
    for (int use = 0; use < uses; ++use) {
      std::uint64_t one[n];
      load(sums[use] + i, one);
#pragma unroll
      for (int k = 0; k < n; ++k) sum[k] += one[k];
    }
#pragma unroll
    for (int k = 0; k < n; ++k) v[k] = to_float(sum[k], unit);
  }
};
inline bool sixteen_bytes_at(const Gradient& g) {
  if (g.rounded) return sixteen_bytes_at(static_cast<const void*>(g.rounded));
  return std::all_of(g.sums.begin(), g.sums.end(),
                     [](const std::int64_t* use) { return sixteen_bytes_at(static_cast<const void*>(use)); });
}
/// REQUIRES: at most gradient_uses_max arrays.
inline SummedGradient summed_gradient(const Gradient& g) {
  REQUIRE(g.sums.size() <= gradient_uses_max, g.sums.size(), gradient_uses_max);
  SummedGradient summed{{}, static_cast<int>(g.sums.size()), std::ldexp(1.0, -g.exponent)};
  std::copy(g.sums.begin(), g.sums.end(), summed.sums);
  return summed;
}
/// Calls f with g as kernels take it.
template <class F>
void with_gradient(const Gradient& g, F&& f) {
  if (g.rounded) f(RoundedGradient{g.rounded});
  else f(summed_gradient(g));
}

}  // namespace troupe::kernels::cuda
