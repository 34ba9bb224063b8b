// The f32 matrix product on a CUDA device, with the bits of kernels/cpu/gemm.h: an element is a sum over blocks of
// gemm_k_block consecutive k, each block one chain of fused multiply-adds in the order of k. Tensor cores and cuBLAS
// add in orders of their own; they are for bf16.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/term_target.h"

namespace troupe::kernels::cuda {

/// C (M, N) = op(A) (M, K) * op(B) (K, N), on `queue`. ta: A is stored (K, M); tb: B is stored (N, K). ld* = floats
/// from one stored row to the next.
void gemm(void* queue, bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a,
          std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc);

/// The same bits, where C has few elements and K is large: blocks of k go in parallel, each a matrix in `scratch`, and
/// are then added in their order. As many at a time as fill a GPU, and as `scratch` holds.
void gemm_by_blocks(void* queue, bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a,
                    std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                    std::span<float> scratch);
/// Floats of scratch with which gemm_by_blocks makes products of up to M rows at its full speed.
std::int64_t gemm_by_blocks_floats(std::int64_t M, std::int64_t N, std::int64_t K);

/// Adds op(A) * op(B) to `out`: every block of k is a term.
void gemm_terms(void* queue, bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a,
                std::int64_t lda, const float* b, std::int64_t ldb, const Terms& out);

}  // namespace troupe::kernels::cuda
