// What a run says of the values of a tensor: their digest, and whether all are finite.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/op.h"

namespace troupe::kernels {

/// Whether no value is NaN or infinite.
bool all_finite(const float* values, std::int64_t n);

/// An additive hash (mod 2^64, two independent words) of (index in the logical tensor, bits of the element):
/// the digests of extents that cover a tensor once add up to the tensor's.
using Digest = std::array<std::uint64_t, 2>;
Digest digest(const View& view, Parallel& par);
inline Digest operator+(const Digest& a, const Digest& b) { return {a[0] + b[0], a[1] + b[1]}; }

}  // namespace troupe::kernels
