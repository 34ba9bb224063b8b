// Philox4x32-10: counter-based random numbers, so that any layout draws the same ones.
//
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11). A number is a pure function
// of (key, counter): neither the rank that computes it nor the order nor the number of workers changes it (NU-2
// topologies).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace troupe {

using Philox4 = std::array<std::uint32_t, 4>;

/// Four random words for a 64-bit key and a 128-bit counter. constexpr: kernels of a GPU call it.
constexpr Philox4 philox(std::uint64_t key, std::uint64_t counter_lo, std::uint64_t counter_hi) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_lo), c1 = static_cast<std::uint32_t>(counter_lo >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_hi), c3 = static_cast<std::uint32_t>(counter_hi >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// FNV-1a, 64 bit: a stable hash of a logical name, for keys.
inline std::uint64_t name_hash(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

/// A key from a seed and a logical name: streams of different names are independent.
inline std::uint64_t philox_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15ull ^ name_hash(name);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// A word as a float in [0, 1): 24 random bits.
inline float to_unit(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace troupe
