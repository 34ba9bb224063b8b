// Kernels that gemm.cpp uses. (Apart from it, because nvcc 13.0.88 ends with an internal error where both are one
// file.)
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

/// n values of bf16, about N(0, 1).
void fill_bf16(void* p, std::size_t n, std::uint32_t seed);
/// How many of the 16-byte pieces differ; waits for the answer.
int different(const void* a, const void* b, std::size_t bytes);
/// Reads and writes `bytes` at p with so many blocks.
void disturb(void* p, std::size_t bytes, int blocks, cudaStream_t stream);
/// A hash of the bits of `bytes` at p; waits for the answer.
std::uint64_t hash_of(const void* p, std::size_t bytes);
