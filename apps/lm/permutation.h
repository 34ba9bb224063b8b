// A keyed pseudo-random permutation of [0, n), computed on demand: no table, any index, any order.
//
// A Feistel network over the smallest even number of bits that holds n, with Philox as its round function;
// results outside [0, n) are fed back in until one falls inside ("cycle walking", Black and Rogaway,
// "Ciphers with arbitrary finite domains", 2002). Fewer than 4 rounds of walking are expected.
#pragma once

#include <cstdint>

namespace troupe::lm {

/// A value type; a pure function of (n, key, tweak).
class Permutation {
 public:
  /// n >= 1. Different tweaks (epochs) under one key (seed) give unrelated permutations.
  Permutation(std::int64_t n, std::uint64_t key, std::uint64_t tweak);

  /// The image of index, 0 <= index < n.
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::int64_t n_;
  std::uint64_t key_, tweak_;
  int half_bits_;
};

}  // namespace troupe::lm
