// Single-precision matrix product: our own, after Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication" (2008). docs/decisions/0001-gemm.md says why.
//
// NU-0: an element of C is a sum over blocks of gemm_k_block consecutive k, each block one chain of fused
// multiply-adds in the order of k. Nothing else (M, N, addresses, threads, neighbours) touches its bits.
#pragma once

#include <cstdint>

#include "devices/device.h"

namespace troupe::kernels {

inline constexpr std::int64_t gemm_k_block = 512;

/// C (M, N) = beta * C + op(A) (M, K) * op(B) (K, N); beta is 0 (C may be garbage) or 1.
/// ta: A is stored (K, M); tb: B is stored (N, K). ld* = floats from one stored row to the next.
void gemm(bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda,
          const float* b, std::int64_t ldb, float* c, std::int64_t ldc, float beta, Parallel& par);

}  // namespace troupe::kernels
