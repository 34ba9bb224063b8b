#pragma once
#include "prelude.cuh"
#ifndef BUG
#define BUG 0
#endif
// rmsnorm(x (rows, C), w (C)) -> y (rows, C), rstd (rows): one block of 256 a row, 16 bytes a load, C a multiple of 8.
struct RmsShared {
  float part[8];
};
KERNEL void __launch_bounds__(256) rmsnorm(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ y,
                                           float* __restrict__ rstd, int C, float eps) {
  auto& sh = shared<RmsShared>();
  const bf16* row = x + (std::size_t)blockIdx.x * C;
  float s = 0;
#if BUG == 3  // misaligned: 16-byte loads from odd places
  row += 1;
#endif
  for (int c = threadIdx.x * 8; c < C; c += 256 * 8) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + c);
    const bf162* p = reinterpret_cast<const bf162*>(&v);
    for (int i = 0; i < 4; ++i) {
      const float2 f = __bfloat1622float2(p[i]);
      s = fmaf(f.x, f.x, s);
      s = fmaf(f.y, f.y, s);
    }
  }
  s = warp_sum(s);
#if BUG == 2  // one past the end of shared memory
  if (threadIdx.x % 32 == 0) sh.part[threadIdx.x / 32 + 1] = s;
#else
  if (threadIdx.x % 32 == 0) sh.part[threadIdx.x / 32] = s;
#endif
#if BUG == 4  // a barrier that only some reach
  if (threadIdx.x < 128) __syncthreads();
#elif BUG != 1  // BUG 1: no barrier
  __syncthreads();
#endif
  float t = 0;
  for (int i = 0; i < 8; ++i) t += sh.part[i];
  const float r = rsqrtf(t / C + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
  for (int c = threadIdx.x * 8; c < C; c += 256 * 8) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + c), g = *reinterpret_cast<const uint4*>(w + c);
    uint4 o;
    const bf162 *p = reinterpret_cast<const bf162*>(&v), *q = reinterpret_cast<const bf162*>(&g);
    bf162* z = reinterpret_cast<bf162*>(&o);
    for (int i = 0; i < 4; ++i) {
      const float2 a = __bfloat1622float2(p[i]), b = __bfloat1622float2(q[i]);
      z[i] = __floats2bfloat162_rn(a.x * r * b.x, a.y * r * b.y);
    }
    *reinterpret_cast<uint4*>(y + (std::size_t)blockIdx.x * C + c) = o;
  }
}

// transpose(x (R, C)) -> y (C, R): tiles of 32 by 32 by way of shared memory, one float of padding a row.
struct TransposeShared {
  float tile[32][33];
};
KERNEL void __launch_bounds__(256) transpose(const float* __restrict__ x, float* __restrict__ y, int R, int C) {
  auto& sh = shared<TransposeShared>();
  for (int i = threadIdx.y; i < 32; i += 8) {
    const int r = blockIdx.y * 32 + i, c = blockIdx.x * 32 + threadIdx.x;
    if (r < R && c < C) sh.tile[i][threadIdx.x] = x[(std::size_t)r * C + c];
  }
#if BUG != 5
  __syncthreads();
#else
  __syncwarp();
#endif
  for (int i = threadIdx.y; i < 32; i += 8) {
    const int c = blockIdx.x * 32 + i, r = blockIdx.y * 32 + threadIdx.x;
    if (r < R && c < C) y[(std::size_t)c * R + r] = sh.tile[threadIdx.x][i];
  }
}

// gemm16(a (M, K), b (N, K)) -> c (M, N) f32 = a b^T: one warp a 16 x 8 tile by tensor-core instructions.
KERNEL void __launch_bounds__(32)
    gemm16(const bf16* __restrict__ a, const bf16* __restrict__ b, float* __restrict__ c, int N, int K) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4, m0 = blockIdx.y * 16, n0 = blockIdx.x * 8;
  float d[4] = {};
  auto pair = [](const bf16* p) { return *reinterpret_cast<const std::uint32_t*>(p); };
  for (int k = 0; k < K; k += 16) {
    const bf16 *lo = a + (std::size_t)(m0 + g) * K + k + 2 * t, *hi = lo + 8 * (std::size_t)K,
               *q = b + (std::size_t)(n0 + g) * K + k + 2 * t;
#if BUG == 6  // two registers of the fragment exchanged
    const std::uint32_t fa[4] = {pair(lo), pair(lo + 8), pair(hi), pair(hi + 8)}, fb[2] = {pair(q), pair(q + 8)};
#else
    const std::uint32_t fa[4] = {pair(lo), pair(hi), pair(lo + 8), pair(hi + 8)}, fb[2] = {pair(q), pair(q + 8)};
#endif
    mma(d, fa, fb);
  }
  float* out = c + (std::size_t)(m0 + g) * N + n0 + 2 * t;
  out[0] = d[0], out[1] = d[1], out[8 * (std::size_t)N] = d[2], out[8 * (std::size_t)N + 1] = d[3];
}

// warp_scan by shared memory without __syncwarp: right on old lock-step hardware, a race since Volta. BUG 7.
struct ScanShared {
  float v[32];
};
KERNEL void __launch_bounds__(32) scan(const float* x, float* y) {
  auto& sh = shared<ScanShared>();
  const int l = threadIdx.x;
  sh.v[l] = x[blockIdx.x * 32 + l];
#if BUG != 7
  __syncwarp();
#endif
  for (int o = 1; o < 32; o *= 2) {
    const float add = l >= o ? sh.v[l - o] : 0;
#if BUG != 7
    __syncwarp();
#endif
    sh.v[l] += add;
#if BUG != 7
    __syncwarp();
#endif
  }
  y[blockIdx.x * 32 + l] = sh.v[l];
}
