#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/micro.h"

namespace troupe::kernels {
namespace {

using namespace simd;

// Packed A is 192 KiB and a panel of packed B 64 KiB: both stay in L2 while a block of C is made.
constexpr std::int64_t m_block = 96, n_block = 512;
constexpr std::int64_t a_floats = m_block * gemm_k_block + lanes, b_floats = n_block * gemm_k_block + lanes;

/// Rows of C per task. Here, and only here, the cut may follow the number of threads: an element of C is the
/// same chain of multiply-adds wherever the cut is, and each cut costs packing B once more.
std::int64_t task_rows(std::int64_t M, std::int64_t col_tasks, std::int64_t threads) {
  const std::int64_t tasks = threads == 1 ? 1 : std::max<std::int64_t>(1, 2 * threads / col_tasks);
  const std::int64_t rows = ((M + tasks - 1) / tasks + m_block - 1) / m_block * m_block;
  return std::max(2 * m_block, rows);
}

}  // namespace

void gemm(bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda,
          const float* b, std::int64_t ldb, float* c, std::int64_t ldc, float beta, Parallel& par) {
  if (M == 0 || N == 0) return;
  if (K == 0) {
    for (std::int64_t i = 0; i < M && beta == 0; ++i) std::fill(c + i * ldc, c + i * ldc + N, 0.0f);
    return;
  }
  const std::int64_t col_tasks = (N + n_block - 1) / n_block;
  const std::int64_t rows = task_rows(M, col_tasks, par.threads()), row_tasks = (M + rows - 1) / rows;
  par.for_each(row_tasks * col_tasks, [&](std::int64_t task) {
    float* const pa = workspace(a_floats + b_floats);
    float* const pb = pa + a_floats;
    const std::int64_t i0 = task / col_tasks * rows, i1 = std::min(M, i0 + rows);
    const std::int64_t j0 = task % col_tasks * n_block, n = std::min(N - j0, n_block);
    for (std::int64_t k = 0; k < K; k += gemm_k_block) {
      const std::int64_t kc = std::min(K - k, gemm_k_block);
      pack<panel_cols>(!tb, tb ? b + j0 * ldb + k : b + k * ldb + j0, ldb, n, N - j0, kc, pb);
      for (std::int64_t i = i0; i < i1; i += m_block) {
        const std::int64_t m = std::min(i1 - i, m_block);
        pack<panel_rows>(ta, ta ? a + k * lda + i : a + i * lda + k, lda, m, M - i, kc, pa);
        multiply_packed(m, n, kc, pa, pb, c + i * ldc + j0, ldc, k > 0 || beta != 0);
      }
    }
  });
}

}  // namespace troupe::kernels
