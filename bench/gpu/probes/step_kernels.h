// The kernels of training_kernels.cuh as functions, and those that step.cpp needs beside them. bf16 tensors are passed
// as void*.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace training {

void random_bf16(void* p, std::int64_t n, float scale, std::uint32_t seed);
void random_f32(float* p, std::int64_t n, float scale, std::uint32_t seed);
void ones(void* p, std::int64_t n);
void rope_table(void* table, int T, cudaStream_t s);  // (T, 64) pairs of cosine and sine
/// Rows of 2048: sum = x + add (none: x), y = norm of it.
void norm(const void* x, const void* add, const void* w, void* sum, void* y, float* rstd, std::int64_t rows,
          cudaStream_t s);
/// dx = gradient of the norm of x + `more` (none: without), dw (f32) by column sums.
void norm_grad(const void* dy, const void* x, const void* w, const float* rstd, const void* more, void* dx,
               float* parts, float* dw, std::int64_t rows, cudaStream_t s);
/// q and k of rows (q, k, v), 32 heads of 128 of 48; `direction` -1: the gradient.
void rope_qk(void* qkv, const void* table, std::int64_t rows, int T, float direction, cudaStream_t s);
/// Rows (gate, up) of 2 * 5504.
void swiglu_rows(const void* gate_up, void* h, std::int64_t rows, cudaStream_t s);
void swiglu_rows_grad(const void* dh, const void* gate_up, void* d_gate_up, std::int64_t rows, cudaStream_t s);
void embed(const int* tokens, const void* table, void* x, std::int64_t rows, cudaStream_t s);
void loss_and_grad(void* logits, const int* targets, float* losses, std::int64_t rows, int vocabulary, float scale,
                   cudaStream_t s);
/// sums += terms, as exact sums.
void add_exactly(std::int64_t* sums, const float* terms, std::int64_t n, int* peak, cudaStream_t s);
void update(float* p, const float* gradient, const std::int64_t* sums, float* m, float* v, void* copy, std::int64_t n,
            cudaStream_t s);

}  // namespace training
