// Philox sixteen counters at a time, and the contiguous runs of an extent along which elements draw the numbers.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "devices/base/philox.h"
#include "devices/device.h"
#include "placement/extent.h"

namespace troupe::kernels {

inline constexpr std::int64_t words_per_block = 64;

typedef std::uint64_t u64x8 __attribute__((vector_size(64)));

/// Products of the lower halves of 64-bit lanes with a 32-bit constant.
inline u64x8 multiply_low(u64x8 a, std::uint32_t b) {
#if defined(__AVX512F__)
  return (u64x8)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)(u64x8{} + b));
#else
  return a * std::uint64_t{b};
#endif
}

/// words[4 i + j] = philox(key, first + i, hi)[j] for i in [0, 16): eight counters a vector, each word in the
/// lower half of a 64-bit lane, where the hardware multiplies 32 x 32 -> 64.
inline void philox_block(std::uint64_t key, std::uint64_t first, std::uint64_t hi, std::uint32_t* words) {
  const u64x8 zero{}, mask = zero + 0xFFFFFFFFu;
  for (std::uint64_t half = 0; half < 2; ++half) {
    const u64x8 counter = (zero + (first + 8 * half)) + u64x8{0, 1, 2, 3, 4, 5, 6, 7};
    u64x8 c0 = counter & mask, c1 = counter >> 32, c2 = zero + (hi & 0xFFFFFFFFu), c3 = zero + (hi >> 32);
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const u64x8 p0 = multiply_low(c0, 0xD2511F53u), p1 = multiply_low(c2, 0xCD9E8D57u);
      c0 = (p1 >> 32) ^ c1 ^ std::uint64_t{k0};
      c1 = p1 & mask;
      c2 = (p0 >> 32) ^ c3 ^ std::uint64_t{k1};
      c3 = p0 & mask;
    }
    const u64x8 a = c0 | c1 << 32, b = c2 | c3 << 32;  // words 0, 1 and words 2, 3 of each counter
    const u64x8 lower = __builtin_shuffle(a, b, u64x8{0, 8, 1, 9, 2, 10, 3, 11});
    const u64x8 upper = __builtin_shuffle(a, b, u64x8{4, 12, 5, 13, 6, 14, 7, 15});
    std::memcpy(words + 32 * half, &lower, sizeof lower);
    std::memcpy(words + 32 * half + 16, &upper, sizeof upper);
  }
}

/// Element e draws word e mod 4 of counter e / 4. Calls f(words, i, n) for consecutive pieces [i, i + n) of
/// the elements [first, first + count); words[k] belongs to element first + i + k.
template <class F>
void for_words(std::uint64_t key, std::uint64_t hi, std::int64_t first, std::int64_t count, F&& f) {
  alignas(64) std::uint32_t words[words_per_block];
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t e = first + i, offset = e & (words_per_block - 1);
    const std::int64_t n = std::min(count - i, words_per_block - offset);
    philox_block(key, static_cast<std::uint64_t>((e - offset) / 4), hi, words);
    f(words + offset, i, n);
    i += n;
  }
}

/// `count` elements that are contiguous both in a part (from `local`) and in the whole (from `global`).
struct Run {
  std::int64_t global = 0, local = 0, count = 0;
};

/// body(sample, run) for each run of `part` of `whole`, for each of `samples`; long runs are cut.
template <class F>
void par_runs(Parallel& par, std::int64_t samples, const Extent& part, const Extent& whole, F&& body) {
  std::vector<Run> runs;
  for_each_run(part, whole, part, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
    constexpr std::int64_t longest = 16384;
    for (std::int64_t i = 0; i < count; i += longest)
      runs.push_back({global + i, local + i, std::min(longest, count - i)});
  });
  const auto n = static_cast<std::int64_t>(runs.size()), total = samples * n;
  constexpr std::int64_t batch = 16;
  if (total > 0)
    par.for_each((total + batch - 1) / batch, [&](std::int64_t b) {
      for (std::int64_t i = b * batch; i < std::min(total, (b + 1) * batch); ++i)
        body(i / n, runs[static_cast<std::size_t>(i % n)]);
    });
}

}  // namespace troupe::kernels
