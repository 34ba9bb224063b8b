// Rectangles of tensors as kernels walk them.
#pragma once

#include "devices/base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.h"

namespace troupe::kernels::cuda {

/// a / b and what is left, for a >= 0 and b > 0. A GPU divides 32 bits in a third of the time of 64.
struct Quotient {
  std::int64_t whole, rest;
};
TROUPE_DEVICE Quotient divide(std::int64_t a, std::int64_t b) {
  if ((static_cast<std::uint64_t>(a | b) >> 32) == 0) {
    const auto x = static_cast<std::uint32_t>(a), y = static_cast<std::uint32_t>(b), q = x / y;
    return {q, x - q * y};
  }
  const std::int64_t q = a / b;
  return {q, a - q * b};
}

/// A rectangle that lies in two row-major buffers. Dim 0 is the innermost: its elements are contiguous in both. Dims
/// that are contiguous in both are one.
struct Walk {
  int dims = 0;
  std::int64_t size[extent_dims_max] = {}, in_a[extent_dims_max] = {},
               in_b[extent_dims_max] = {};  ///< lengths, strides
  std::int64_t first_a = 0, first_b = 0;    ///< where element 0 lies

  /// Runs of contiguous elements.
  std::int64_t runs() const {
    std::int64_t n = 1;
    for (int d = 1; d < dims; ++d) n *= size[d];
    return n;
  }
};
inline Walk walk(const Extent& part, const Extent& a, const Extent& b) {
  Walk w;
  w.first_a = offset_in(part, a);
  w.first_b = offset_in(part, b);
  std::int64_t stride_a = 1, stride_b = 1;
  for (std::size_t d = part.dims.size(); d-- > 0;) {
    const std::int64_t n = part.dims[d].size();
    const int last = w.dims - 1;
    if (last >= 0 && n == 1) {
      // nothing to walk
    } else if (last >= 0 && stride_a == w.size[last] * w.in_a[last] && stride_b == w.size[last] * w.in_b[last]) {
      w.size[last] *= n;
    } else {
      REQUIRE(w.dims < static_cast<int>(extent_dims_max), part, a, b);
      w.size[w.dims] = n;
      w.in_a[w.dims] = stride_a;
      w.in_b[w.dims++] = stride_b;
    }
    stride_a *= a.dims[d].size();
    stride_b *= b.dims[d].size();
  }
  if (w.dims == 0) {  // a scalar
    w.dims = 1;
    w.size[0] = w.in_a[0] = w.in_b[0] = 1;
  }
  return w;
}
/// A part of a whole (a) that lies in a buffer of its own (b).
inline Walk walk(const Extent& part, const Shape& whole) { return walk(part, Extent::whole(whole), part); }

/// Where element i of the part lies in a.
TROUPE_DEVICE std::int64_t place_in_a(const Walk& w, std::int64_t i) {
  std::int64_t at = w.first_a;
  for (int d = 0; d < w.dims - 1; ++d) {
    const Quotient q = divide(i, w.size[d]);
    at += q.rest * w.in_a[d];
    i = q.whole;
  }
  return at + i * w.in_a[w.dims - 1];
}
/// Where run i of the part begins in a.
TROUPE_DEVICE std::int64_t run_in_a(const Walk& w, std::int64_t i) {
  std::int64_t at = w.first_a;
  for (int d = 1; d < w.dims; ++d) {
    const Quotient q = divide(i, w.size[d]);
    at += q.rest * w.in_a[d];
    i = q.whole;
  }
  return at;
}

}  // namespace troupe::kernels::cuda
