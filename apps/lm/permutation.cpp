#include "apps/lm/permutation.h"

#include <bit>

#include "devices/base/check.h"
#include "devices/base/philox.h"

namespace troupe::lm {
namespace {
constexpr std::uint64_t k_rounds = 6;  // 4 rounds suffice where few values are seen; 6 for tiny domains
}

Permutation::Permutation(std::int64_t n, std::uint64_t key, std::uint64_t tweak) : n_(n), key_(key), tweak_(tweak) {
  REQUIRE(n >= 1, n);
  half_bits_ = (std::bit_width(static_cast<std::uint64_t>(n - 1)) + 1) / 2;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  REQUIRE(0 <= index && index < n_, index, n_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto x = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = x >> half_bits_, right = x & mask;
    for (std::uint64_t round = 0; round < k_rounds; ++round) {
      const Philox4 random = philox(key_, right << 3 | round, tweak_);
      const std::uint64_t next = left ^ ((std::uint64_t{random[0]} << 32 | random[1]) & mask);
      left = right;
      right = next;
    }
    x = left << half_bits_ | right;
  } while (x >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(x);
}

}  // namespace troupe::lm
