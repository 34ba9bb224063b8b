// What a kernel may use: nvcc makes CUDA of it, any other compiler runs the same on fibers (devices/fibers/block.h).
//
// Rules of the kernels in this folder, which give the CPU's bits (docs/decisions/0057-same-bits-on-every-device.md):
//   - the order of every sum is written down, and is that of kernels/cpu/;
//   - multiply-adds are fused where fmaf or fma is written and nowhere else (nvcc: -fmad=false);
//   - no function of CUDA's mathematical library but sqrtf, sqrt, fmaf and fma, which IEEE 754 defines; others are in
//     exact.cuh and kernels/exact_math.h;
//   - shared memory is one struct of a kernel, which shared<T>() returns.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define TROUPE_KERNEL __global__
#define TROUPE_DEVICE __device__ __forceinline__
#define TROUPE_THREADS(...) __launch_bounds__(__VA_ARGS__)
#else
#include "devices/fibers/block.h"
#define TROUPE_KERNEL
#define TROUPE_DEVICE __attribute__((always_inline)) inline
#define TROUPE_THREADS(...)
#endif

namespace troupe::kernels::cuda {

/// Four floats that one access of 16 bytes moves.
struct alignas(16) Float4 {
  float v[4];
};

inline constexpr int warp_size = 32;

#if defined(__CUDACC__)

TROUPE_DEVICE int thread_x() { return static_cast<int>(threadIdx.x); }
TROUPE_DEVICE int thread_y() { return static_cast<int>(threadIdx.y); }
TROUPE_DEVICE std::int64_t block_x() { return blockIdx.x; }
TROUPE_DEVICE std::int64_t block_y() { return blockIdx.y; }
TROUPE_DEVICE std::int64_t block_z() { return blockIdx.z; }
TROUPE_DEVICE int threads_x() { return static_cast<int>(blockDim.x); }
TROUPE_DEVICE std::int64_t blocks_x() { return gridDim.x; }

/// The shared memory of the block.
template <class T>
TROUPE_DEVICE T& shared() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return *reinterpret_cast<T*>(memory);
}

TROUPE_DEVICE void sync_block() { __syncthreads(); }
TROUPE_DEVICE void sync_warp() { __syncwarp(); }
/// What the lane brings whose number differs from this lane's by the bits of `bits`. All lanes call it.
template <class T>
TROUPE_DEVICE T shuffle_xor(T value, int bits) {
  return __shfl_xor_sync(~0u, value, bits);
}
/// What lane `lane` brings.
template <class T>
TROUPE_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(~0u, value, lane);
}

TROUPE_DEVICE void atomic_add(std::uint64_t* p, std::uint64_t v) {
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
TROUPE_DEVICE void atomic_max(std::int32_t* p, std::int32_t v) { atomicMax(p, v); }
TROUPE_DEVICE void atomic_or(std::uint32_t* p, std::uint32_t v) { atomicOr(p, v); }

TROUPE_DEVICE std::int32_t bits_of(float x) { return __float_as_int(x); }
TROUPE_DEVICE float float_of(std::int32_t bits) { return __int_as_float(bits); }
TROUPE_DEVICE std::int64_t bits_of(double x) { return __double_as_longlong(x); }

#else

TROUPE_DEVICE int thread_x() { return static_cast<int>(fibers::thread_index().x); }
TROUPE_DEVICE int thread_y() { return static_cast<int>(fibers::thread_index().y); }
TROUPE_DEVICE std::int64_t block_x() { return fibers::block_index().x; }
TROUPE_DEVICE std::int64_t block_y() { return fibers::block_index().y; }
TROUPE_DEVICE std::int64_t block_z() { return fibers::block_index().z; }
TROUPE_DEVICE int threads_x() { return static_cast<int>(fibers::block_size().x); }
TROUPE_DEVICE std::int64_t blocks_x() { return fibers::grid_size().x; }

template <class T>
TROUPE_DEVICE T& shared() {
  return *reinterpret_cast<T*>(fibers::shared_memory());
}

/// A place of the code, as barriers tell one another apart.
__attribute__((noinline)) inline const void* here() {
  asm volatile("");  // the compiler is not to see that two calls are alike
  return __builtin_return_address(0);
}
TROUPE_DEVICE void sync_block() { fibers::sync_block(here()); }
TROUPE_DEVICE void sync_warp() { fibers::meet(here(), ~0u, 0, true); }
template <class To, class From>
TROUPE_DEVICE To copy_bits(From from) {
  To to{};
  std::memcpy(&to, &from, sizeof to < sizeof from ? sizeof to : sizeof from);
  return to;
}
template <class T>
TROUPE_DEVICE T shuffle(T value, int lane) {
  return copy_bits<T>(fibers::meet(here(), ~0u, copy_bits<std::uint64_t>(value), false)[lane % warp_size]);
}
template <class T>
TROUPE_DEVICE T shuffle_xor(T value, int bits) {
  return shuffle(value, (thread_x() ^ bits) % warp_size);
}

TROUPE_DEVICE void atomic_add(std::uint64_t* p, std::uint64_t v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
TROUPE_DEVICE void atomic_max(std::int32_t* p, std::int32_t v) {
  std::int32_t now = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (now < v && !__atomic_compare_exchange_n(p, &now, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
TROUPE_DEVICE void atomic_or(std::uint32_t* p, std::uint32_t v) { __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }

TROUPE_DEVICE std::int32_t bits_of(float x) { return copy_bits<std::int32_t>(x); }
TROUPE_DEVICE float float_of(std::int32_t bits) { return copy_bits<float>(bits); }
TROUPE_DEVICE std::int64_t bits_of(double x) { return copy_bits<std::int64_t>(x); }

#endif

}  // namespace troupe::kernels::cuda
