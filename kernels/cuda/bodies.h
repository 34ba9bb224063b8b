// The CUDA bodies of ops, as kernels/cpu/kernels.h has those of the CPU: the same arguments, the same bits. Declared
// without CUDA: nvcc compiles them for a GPU, the C++ compiler for fibers (devices/fibers/block.h).
#pragma once

#include "kernels/op.h"

namespace troupe::kernels::cuda {

void add(const Call&);
void attention(const Call&);
void attention_cached(const Call&);
void attention_grad(const Call&);
void linear(const Call&);
void linear_dw(const Call&);
void linear_dx(const Call&);
void multiply(const Call&);
void relu(const Call&);
void relu_grad(const Call&);
void running_average(const Call&);
void scale(const Call&);
void swiglu(const Call&);
void swiglu_grad(const Call&);
void weighted_sum(const Call&);

/// CudaBody::scratch_bytes of the bodies that have their own.
std::int64_t attention_cached_scratch(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&);
std::int64_t attention_grad_scratch(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&);

/// Returns the ops with the bodies of this folder (OpDef::cuda). Ops that have none here are as they were.
OpSet with_cuda_bodies(const OpSet& ops);

}  // namespace troupe::kernels::cuda
