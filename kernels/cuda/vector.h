// The functions over long vectors (exact_sum.h, optimizer.h, square_sums.h, digest.h, add_into.h and initial.h of
// kernels/, copies of placement/extent.h) on a CUDA device: the same arguments, the same bits. All memory is the
// device's; the functions issue kernels on `queue` (Call::queue) and return. Lists of pointers, extents and numbers are
// the host's and are read before the function returns.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.h"
#include "kernels/op.h"
#include "kernels/optimizer.h"

namespace troupe::kernels::cuda {

/// Arrays of sums in a Gradient at most: a kernel receives their addresses as an argument.
inline constexpr std::size_t gradient_uses_max = 32;
/// Dims of an extent at most, where those that are contiguous count as one.
inline constexpr std::size_t extent_dims_max = 8;

void add_terms(std::int64_t* sums, const float* terms, std::int64_t n, std::int32_t exponent, bool accumulate,
               void* queue);
void add_sums(std::int64_t* into, const std::int64_t* from, std::int64_t n, void* queue);
/// REQUIRES, as all functions of a Gradient: at most gradient_uses_max arrays.
void round_sums(float* out, const Gradient& g, std::int64_t n, void* queue);
void add_into(float* dst, const float* src, std::int64_t n, void* queue);

void adamw_update(const AdamWState& from, const AdamWState& to, const Gradient& g, std::int64_t n, const AdamW& hyper,
                  void* queue);
void row_square_sums(const Gradient& g, std::int64_t rows, std::int64_t cols, double* sums, void* queue);

/// words[0, 2) += digest of the view. The elements lie at a multiple of their size.
void digest(const View& view, std::uint64_t* words, void* queue);
/// *found |= 1 where a value is NaN or infinite.
void all_finite(const float* values, std::int64_t n, std::uint32_t* found, void* queue);

void init_normal(const View& view, std::uint64_t key, float std, void* queue);
void init_constant(const View& view, float value, void* queue);

/// troupe::copy_extent between two buffers of this device, or from one of the device to one that it can reach. A
/// buffer that holds `part` alone is what a message carries. REQUIRES: item is 1, 2, 4 or 8.
void copy_extent(const Extent& part, const void* src, const Extent& src_extent, void* dst, const Extent& dst_extent,
                 std::int64_t item, void* queue);

}  // namespace troupe::kernels::cuda
