// Row-major matrix products by cuBLASLt: descriptors, the heuristic's algorithms, the call.
#pragma once

#include <cublasLt.h>

#include <string>
#include <vector>

#include "fact.h"

namespace product {

inline constexpr std::size_t workspace_bytes = 32 << 20;
inline cublasLtHandle_t lt;
inline void* workspace;

inline void lt_check(cublasStatus_t s, int line) {
  if (s == CUBLAS_STATUS_SUCCESS) return;
  probe::fact("failed", probe::text("cuBLASLt status %d at line %d", int(s), line));
  std::exit(1);
}
#define LT(call) ::product::lt_check((call), __LINE__)

/// C (M, N) = op(A) op(B) + beta C, all row-major; ta: A is stored (K, M); tb: B is stored (N, K).
struct Product {
  std::string name;
  bool ta, tb;
  long M, N, K;
  cudaDataType_t out;
  float beta;
  cudaDataType_t in;
};
struct Descriptors {
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, c;
  explicit Descriptors(const Product& p) {
    const cublasOperation_t first = p.tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = p.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    LT(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    LT(cublasLtMatrixLayoutCreate(&a, p.in, std::uint64_t(p.tb ? p.K : p.N), std::uint64_t(p.tb ? p.N : p.K),
                                  p.tb ? p.K : p.N));
    LT(cublasLtMatrixLayoutCreate(&b, p.in, std::uint64_t(p.ta ? p.M : p.K), std::uint64_t(p.ta ? p.K : p.M),
                                  p.ta ? p.M : p.K));
    LT(cublasLtMatrixLayoutCreate(&c, p.out, std::uint64_t(p.N), std::uint64_t(p.M), p.N));
  }
  ~Descriptors() {
    for (auto l : {a, b, c}) cublasLtMatrixLayoutDestroy(l);
    cublasLtMatmulDescDestroy(op);
  }
};
inline std::vector<cublasLtMatmulHeuristicResult_t> heuristic(const Descriptors& d, int most,
                                                              std::size_t bytes = workspace_bytes,
                                                              std::uint32_t alignment = 256) {
  cublasLtMatmulPreference_t preference;
  LT(cublasLtMatmulPreferenceCreate(&preference));
  LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    LT(cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int n = 0;
  cublasLtMatmulAlgoGetHeuristic(lt, d.op, d.a, d.b, d.c, d.c, preference, most, found.data(), &n);
  found.resize(static_cast<std::size_t>(n));
  cublasLtMatmulPreferenceDestroy(preference);
  return found;
}
template <class T>
long get(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t which) {
  T v{};
  std::size_t written = 0;
  return cublasLtMatmulAlgoConfigGetAttribute(&algo, which, &v, sizeof v, &written) == CUBLAS_STATUS_SUCCESS ? long(v)
                                                                                                             : -1;
}
inline std::string describe(const cublasLtMatmulHeuristicResult_t& h) {
  return probe::text(
      "id %ld tile %ld stages %ld split-k %ld reduction %ld swizzle %ld inner %ld cluster %ld workspace %zu waves %.2f",
      get<std::int32_t>(h.algo, CUBLASLT_ALGO_CONFIG_ID), get<std::uint32_t>(h.algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
      get<std::uint32_t>(h.algo, CUBLASLT_ALGO_CONFIG_STAGES_ID),
      get<std::int32_t>(h.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
      get<std::uint32_t>(h.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
      get<std::uint32_t>(h.algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
      get<std::uint16_t>(h.algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
      get<std::uint16_t>(h.algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID), h.workspaceSize, double(h.wavesCount));
}

inline void multiply(const Product& p, const Descriptors& d, const cublasLtMatmulAlgo_t& algo, const void* a,
                     const void* b, void* c, cudaStream_t stream) {
  const float alpha = 1;
  LT(cublasLtMatmul(lt, d.op, &alpha, b, d.a, a, d.b, &p.beta, c, d.c, c, d.c, &algo, workspace, workspace_bytes,
                    stream));
}

}  // namespace product
