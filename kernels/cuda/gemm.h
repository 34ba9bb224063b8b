// The f32 matrix product on a CUDA device, with the bits of kernels/cpu/gemm.h: an element is a sum over blocks of
// gemm_k_block consecutive k, each block one chain of fused multiply-adds in the order of k. Tensor cores and cuBLAS add
// in orders of their own; they are for bf16.
#pragma once

#include <cstdint>

#include "kernels/term_target.h"

namespace troupe::kernels::cuda {

/// C (M, N) = op(A) (M, K) * op(B) (K, N), on `queue`. ta: A is stored (K, M); tb: B is stored (N, K). ld* = floats
/// from one stored row to the next.
void gemm(void* queue, bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a,
          std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc);

/// Adds op(A) * op(B) to `out`: every block of k is a term.
void gemm_terms(void* queue, bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a,
                std::int64_t lda, const float* b, std::int64_t ldb, const Terms& out);

}  // namespace troupe::kernels::cuda
