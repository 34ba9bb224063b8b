// What a run says of the values of a tensor.
#include "kernels/cuda/extents.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/digest_words.h"

namespace troupe::kernels::cuda {

namespace {

/// Additions mod 2^64 commute: the order of threads does not matter.
TROUPE_DEVICE void add_of_warp(std::uint64_t* to, std::uint64_t v) {
  for (int bits = 16; bits > 0; bits /= 2) v += shuffle_xor(v, bits);
  if (thread_x() % warp_size == 0) atomic_add(to, v);
}

template <class Bits>
TROUPE_KERNEL void TROUPE_THREADS(vector_threads)
    add_digest(const Bits* data, std::int64_t n, Walk walk, std::uint64_t* words) {
  std::uint64_t first = 0, second = 0;
  for_mine(n, [&](std::int64_t i) {
    const auto index = static_cast<std::uint64_t>(place_in_a(walk, i));
    first += digest_detail::first_word(data[i], index);
    second += digest_detail::second_word(data[i], index);
  });
  add_of_warp(words, first);
  add_of_warp(words + 1, second);
}

template <class Bits>
void issue(const View& view, std::uint64_t* words, void* queue) {
  const std::int64_t n = view.size();
  launch(queue, vector_grid(n), add_digest<Bits>, reinterpret_cast<const Bits*>(view.data), n,
         walk(view.extent, view.logical), words);
}

TROUPE_KERNEL void TROUPE_THREADS(vector_threads)
    find_not_finite(const float* values, Items items, std::uint32_t* found) {
  constexpr std::int32_t exponent = 0x7f800000;  // all of its bits: NaN and the infinities, no other value
  std::uint32_t any = 0;
  for_items(items, [&](std::int64_t i, auto count) {
    constexpr int n = decltype(count)::value;
    float v[n];
    load(values + i, v);
#pragma unroll
    for (int k = 0; k < n; ++k) any |= (bits_of(v[k]) & exponent) == exponent ? 1u : 0u;
  });
  if (any != 0) atomic_or(found, 1);
}

}  // namespace

void digest(const View& view, std::uint64_t* words, void* queue) {
  switch (size_of(view.dtype)) {
    case 8: return issue<std::uint64_t>(view, words, queue);
    case 4: return issue<std::uint32_t>(view, words, queue);
    case 2: return issue<std::uint16_t>(view, words, queue);
    default: return issue<std::uint8_t>(view, words, queue);
  }
}

void all_finite(const float* values, std::int64_t n, std::uint32_t* found, void* queue) {
  const Items items = items_of(n, sixteen_bytes_at(values));
  launch(queue, vector_grid(items.count()), find_not_finite, values, items, found);
}

}  // namespace troupe::kernels::cuda
