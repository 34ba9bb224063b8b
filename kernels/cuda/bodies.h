// The CUDA bodies of ops, as kernels/cpu/kernels.h has those of the CPU: the same arguments, the same bits. Declared
// without CUDA: nvcc compiles them for a GPU, the C++ compiler for fibers (devices/fibers/block.h).
#pragma once

#include "kernels/op.h"

namespace troupe::kernels::cuda {

void accumulate(const Call&);
void adamw(const Call&);
void add(const Call&);
void attention(const Call&);
void attention_cached(const Call&);
void attention_grad(const Call&);
void bias_add(const Call&);
void bias_grad(const Call&);
void dropout(const Call&);
void embedding(const Call&);
void embedding_grad(const Call&);
void linear(const Call&);
void linear_dw(const Call&);
void linear_dx(const Call&);
void lm_head_loss(const Call&);
void lm_head_loss_grad(const Call&);
void lm_head_stats(const Call&);
void mse_loss(const Call&);
void mse_loss_grad(const Call&);
void multiply(const Call&);
void orthogonalize(const Call&);
void relu(const Call&);
void relu_grad(const Call&);
void rmsnorm(const Call&);
void rmsnorm_dw(const Call&);
void rmsnorm_dx(const Call&);
void rope(const Call&);
void running_average(const Call&);
void delay(const Call&);
void keep_microbatch(const Call&);
void kept_microbatch(const Call&);
void scale(const Call&);
void softmax_cross_entropy(const Call&);
void softmax_cross_entropy_grad(const Call&);
void swiglu(const Call&);
void swiglu_grad(const Call&);
void weighted_sum(const Call&);

// Bytes of scratch of bodies that need other scratch than the CPU's (CudaBody::scratch_bytes).
std::int64_t attention_cached_scratch(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&);
std::int64_t attention_grad_scratch(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&);
std::int64_t column_sums_scratch(std::span<const TensorType> in, std::span<const TensorType> out,
                                 const Attrs&);  // bias_grad, rmsnorm_dw
std::int64_t lm_head_loss_grad_scratch(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&);
std::int64_t orthogonalize_scratch_bytes(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&);

/// Returns the ops with the bodies of this folder (OpDef::cuda). Ops that have none here are as they were.
OpSet with_cuda_bodies(const OpSet& ops);

}  // namespace troupe::kernels::cuda
