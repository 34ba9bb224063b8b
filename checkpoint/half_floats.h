// Elements of DType::bf16 and DType::f16, widened: both are files' types, which no kernel computes with.
#pragma once

#include <bit>
#include <cstdint>

namespace troupe::checkpoint {

/// The bits of the f32 of the same value as a bf16; a NaN keeps its payload.
inline std::uint32_t f32_bits_of_bf16(std::uint16_t bits) { return static_cast<std::uint32_t>(bits) << 16; }

/// The bits of the f32 of the same value as an IEEE half; a NaN keeps its payload.
inline std::uint32_t f32_bits_of_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16, exponent = (bits >> 10) & 31,
                      fraction = bits & 1023;
  if (exponent == 31) return sign | 0x7f800000 | fraction << 13;  // infinite, NaN
  if (exponent != 0) return sign | (exponent + 112) << 23 | fraction << 13;
  return sign | std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f);  // subnormal
}

}  // namespace troupe::checkpoint
