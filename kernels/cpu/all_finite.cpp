#include <algorithm>
#include <bit>

#include "kernels/vector.h"

namespace troupe::kernels {

bool all_finite(const float* values, std::int64_t n) {
  constexpr std::uint32_t exponent = 0x7f800000;  // all of its bits: NaN and the infinities, no other value
  constexpr std::int64_t block = 4096;
  for (std::int64_t begin = 0; begin < n; begin += block) {
    std::uint32_t found = 0;
    for (std::int64_t i = begin; i < std::min(n, begin + block); ++i)
      found |= (std::bit_cast<std::uint32_t>(values[i]) & exponent) == exponent;
    if (found != 0) return false;
  }
  return true;
}

}  // namespace troupe::kernels
