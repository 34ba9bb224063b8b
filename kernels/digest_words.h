// What an element adds to a digest (kernels/digest.h), on a CPU and on a GPU.
#pragma once

#include <cstdint>

namespace troupe::kernels::digest_detail {

/// Stafford's 13th mixer (the finalizer of SplitMix64).
constexpr std::uint64_t mix_a(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
/// The finalizer of MurmurHash3: other shifts, other multipliers.
constexpr std::uint64_t mix_b(std::uint64_t z) {
  z = (z ^ (z >> 33)) * 0xFF51AFD7ED558CCDull;
  z = (z ^ (z >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return z ^ (z >> 33);
}

// Of the element with these bits at this index. Value and index are mixed one after the other: no linear relation
// between them survives.
constexpr std::uint64_t first_word(std::uint64_t bits, std::uint64_t index) {
  return mix_a(mix_b(bits + 0x9E3779B97F4A7C15ull) + index * 0xD1342543DE82EF95ull);
}
constexpr std::uint64_t second_word(std::uint64_t bits, std::uint64_t index) {
  return mix_b(mix_a(bits ^ 0x2545F4914F6CDD1Dull) ^ (index + 1) * 0xAF251AF3B0F025B5ull);
}

}  // namespace troupe::kernels::digest_detail
