// What a kernel may use. nvcc: CUDA itself. Any other compiler: the same on CPU fibers (on_cpu.h).
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
using bf16 = __nv_bfloat16;
using bf162 = __nv_bfloat162;

#if defined(__CUDACC__)
#define KERNEL __global__
#define DEVICE __device__ __forceinline__
/// The block's shared memory: a kernel has one struct of it.
template <class T>
DEVICE T& shared() {
  extern __shared__ __align__(1024) unsigned char arena[];
  return *reinterpret_cast<T*>(arena);
}
/// d (16, 8) += a (16, 16) b (16, 8): one warp; PTX ISA, "Matrix fragments for mma.m16n8k16".
DEVICE void mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
#include <cmath>
#include "on_cpu.h"
#define KERNEL
#define DEVICE inline
#undef __launch_bounds__
#define __launch_bounds__(...)
#define threadIdx (emu::self().thread)
#define blockIdx (emu::self().block)
#define blockDim (emu::block()->size)
#define gridDim (emu::block()->grid)
template <class T>
inline T& shared() {
  return *reinterpret_cast<T*>(emu::block()->shared.get());
}
__attribute__((always_inline)) inline void __syncthreads() { emu::sync_block(); }
__attribute__((always_inline)) inline void __syncwarp(unsigned mask = ~0u) { emu::meet(mask, 0, true); }
template <class T>
std::uint64_t bits_of(T v) {
  std::uint64_t u = 0;
  std::memcpy(&u, &v, sizeof v);
  return u;
}
template <class T>
T of_bits(std::uint64_t u) {
  T v;
  std::memcpy(&v, &u, sizeof v);
  return v;
}
template <class T>
__attribute__((always_inline)) inline T __shfl_xor_sync(unsigned mask, T v, int o) {
  return of_bits<T>(emu::meet(mask, bits_of(v), false)[(emu::self().rank ^ unsigned(o)) % 32]);
}
template <class T>
__attribute__((always_inline)) inline T __shfl_sync(unsigned mask, T v, int lane) {
  return of_bits<T>(emu::meet(mask, bits_of(v), false)[lane % 32]);
}
inline float atomicAdd(float* p, float v) {
  float old = __atomic_load_n(reinterpret_cast<std::uint32_t*>(p), __ATOMIC_RELAXED), sum;
  std::uint32_t o = __atomic_load_n(reinterpret_cast<std::uint32_t*>(p), __ATOMIC_RELAXED), n;
  do {
    std::memcpy(&old, &o, 4);
    sum = old + v;
    std::memcpy(&n, &sum, 4);
  } while (!__atomic_compare_exchange_n(reinterpret_cast<std::uint32_t*>(p), &o, n, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  return old;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
__attribute__((always_inline)) inline void mma(float (&d)[4], const std::uint32_t (&a)[4],
                                               const std::uint32_t (&b)[2]) {
  // Fragment of lane l (g = l / 4, t = l % 4): a: (g, 2t) (g+8, 2t) (g, 2t+8) (g+8, 2t+8); b: (2t, g) (2t+8, g);
  // d: (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1). Pairs along k, lower half first.
  std::uint32_t A[4][32], B[2][32];
  for (int i = 0; i < 4; ++i) {
    const auto* all = emu::meet(~0u, a[i], false);
    for (int l = 0; l < 32; ++l) A[i][l] = std::uint32_t(all[l]);
  }
  for (int i = 0; i < 2; ++i) {
    const auto* all = emu::meet(~0u, b[i], false);
    for (int l = 0; l < 32; ++l) B[i][l] = std::uint32_t(all[l]);
  }
  auto half = [](std::uint32_t w, int h) {
    std::uint32_t u = (h ? w >> 16 : w & 0xFFFF) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  };
  auto at_a = [&](int r, int k) { return half(A[(r >= 8) + 2 * (k >= 8)][r % 8 * 4 + k % 8 / 2], k % 2); };
  auto at_b = [&](int k, int c) { return half(B[k >= 8][c * 4 + k % 8 / 2], k % 2); };
  const int g = emu::self().rank % 32 / 4, t = emu::self().rank % 32 % 4;
  for (int i = 0; i < 4; ++i) {
    double s = d[i];
    for (int k = 0; k < 16; ++k) s += double(at_a(g + i / 2 * 8, k)) * at_b(k, 2 * t + i % 2);
    d[i] = float(s);
  }
}
#endif

DEVICE float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
DEVICE float warp_max(float v) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}
