// DType and Shape: what a logical tensor is made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// Element types. Not every op has a kernel for every type.
/// sum64: an exact sum, an int64 that counts units of 2^-e, where e is the tensor's exponent. No file stores it.
enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8, sum64 };

/// Bytes of one element.
std::int64_t size_of(DType dtype);
/// "f32", "i64", ...: the names safetensors uses, in lower case; and "sum64".
const char* to_string(DType dtype);

/// Lengths of the tensor dims, outermost first. Row-major everywhere.
using Shape = std::vector<std::int64_t>;

/// Number of elements; 1 for a scalar (empty shape).
std::int64_t elements(const Shape& shape);
/// "[8, 256, 384]".
std::string to_string(const Shape& shape);

/// Bytes. Tensors that share memory begin at multiples of this: a cache line, an AVX-512 vector.
inline constexpr std::int64_t tensor_alignment = 64;
/// `bytes`, rounded up to a multiple of `to`.
inline std::int64_t aligned(std::int64_t bytes, std::int64_t to = tensor_alignment) {
  return (bytes + to - 1) / to * to;
}

}  // namespace troupe
