// Sizes from files, which may be hostile. Internal to checkpoint/.
#pragma once

#include <optional>

#include "placement/shape.h"

namespace troupe::checkpoint {

/// Bytes of a tensor of this shape; nothing where a length is negative or the product does not fit.
inline std::optional<std::int64_t> checked_bytes(const Shape& shape, std::int64_t item) {
  std::int64_t n = 1;
  for (const auto d : shape)
    if (d < 0 || __builtin_mul_overflow(n, d, &n)) return std::nullopt;
  if (__builtin_mul_overflow(n, item, &n)) return std::nullopt;
  return n;
}

}  // namespace troupe::checkpoint
