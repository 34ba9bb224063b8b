// The exact kernels of the CPU, for probes that compare their bits with the GPU's: the project's own code, compiled as
// its CPU bodies are.
#pragma once

#include <cstdint>

namespace cpu {

/// Values of float bits first, first + 1, ..
void exp_of_bits(std::uint32_t first, std::int64_t n, float* out);
void sqrt_of_bits(std::uint32_t first, std::int64_t n, float* out);
void bf16_of_bits(std::uint32_t first, std::int64_t n, std::uint16_t* out);
/// a / b, a * b + c rounded once, both in float, of words drawn from `seed`.
void division(const float* a, const float* b, std::int64_t n, float* out);
void fused(const float* a, const float* b, const float* c, std::int64_t n, float* out);

struct AdamWStep {
  float lr, beta1, beta2, eps, weight_decay;
  double grad_scale;
  std::int64_t step;
};
void adamw(float* p, const float* g, float* m, float* v, std::int64_t n, const AdamWStep& hyper);
void adamw_sums(float* p, const std::int64_t* g, std::int32_t exponent, float* m, float* v, std::int64_t n,
                const AdamWStep& hyper);
void square_sums(const float* x, std::int64_t rows, std::int64_t cols, double* sums);
void put_terms(std::int64_t* sums, const float* terms, std::int64_t n, std::int32_t exponent, bool accumulate,
               float* peak);
void round_sums(float* out, const std::int64_t* sums, std::int64_t n, std::int32_t exponent);
void philox_words(std::uint64_t key, std::uint64_t first, std::uint64_t hi, std::int64_t counters,
                  std::uint32_t* words);
void dropout(const float* x, float* y, std::int64_t n, double p, std::uint64_t key, std::uint64_t hi);
void normals(std::uint64_t key, float std, std::int64_t n, float* out);
void rmsnorm(const float* x, const float* w, float* y, float* rstd, std::int64_t rows, std::int64_t cols, float eps);
void swiglu(const float* gate, const float* up, float* h, std::int64_t n);
void swiglu_grad(const float* dh, const float* gate, const float* up, float* dgate, float* dup, std::int64_t n);
void softmax_rows(const float* x, std::int64_t rows, std::int64_t n, const std::int32_t* targets, double* losses,
                  float* lse);
void softmax_rows_grad(const float* x, std::int64_t rows, std::int64_t n, const std::int32_t* targets, const float* lse,
                       float scale, float* dx);

}  // namespace cpu
