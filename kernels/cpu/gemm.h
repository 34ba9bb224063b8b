// Single-precision matrix product: our own, after Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication" (2008). docs/decisions/0001-gemm.md says why.
//
// NU-0 (kernels): an element of C is a sum over blocks of gemm_k_block consecutive k, each block one chain of fused
// multiply-adds in the order of k. Its bits depend on nothing else (M, N, addresses, threads, neighbours).
#pragma once

#include <cstdint>

#include "devices/device.h"
#include "kernels/term_target.h"

namespace troupe::kernels {

inline constexpr std::int64_t gemm_k_block = 512;

/// C (M, N) = op(A) (M, K) * op(B) (K, N).
/// ta: A is stored (K, M); tb: B is stored (N, K). ld* = floats from one stored row to the next.
void gemm(bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda,
          const float* b, std::int64_t ldb, float* c, std::int64_t ldc, Parallel& par);

/// Adds op(A) * op(B) to `out`: every block of k is a term. Where `out` is f32, the blocks add up as in gemm, and the
/// peak covers every value that a block stores.
void gemm_terms(bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda,
                const float* b, std::int64_t ldb, const Terms& out, Parallel& par);

}  // namespace troupe::kernels
