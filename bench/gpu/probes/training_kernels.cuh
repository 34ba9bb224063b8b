// Plain memory-bound kernels of a training step: 16 bytes an access, nothing tuned. bandwidth.cu times each, step.cpp
// all in their order.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

namespace training {

using bf16 = __nv_bfloat16;
using bf162 = __nv_bfloat162;

__device__ __forceinline__ std::int64_t thread() { return std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
#define FOR_EACH(i, n) for (std::int64_t i = thread(); i < (n); i += std::int64_t(gridDim.x) * blockDim.x)

struct Eight {
  float v[8];
};
__device__ __forceinline__ Eight load8(const bf16* p) {
  const uint4 u = *reinterpret_cast<const uint4*>(p);
  const bf162* h = reinterpret_cast<const bf162*>(&u);
  Eight e;
  for (int i = 0; i < 4; ++i) {
    const float2 f = __bfloat1622float2(h[i]);
    e.v[2 * i] = f.x, e.v[2 * i + 1] = f.y;
  }
  return e;
}
__device__ __forceinline__ void store8(bf16* p, const Eight& e) {
  uint4 u;
  bf162* h = reinterpret_cast<bf162*>(&u);
  for (int i = 0; i < 4; ++i) h[i] = __floats2bfloat162_rn(e.v[2 * i], e.v[2 * i + 1]);
  *reinterpret_cast<uint4*>(p) = u;
}
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float part[33];
  for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float s = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) s += part[i];
  return s;
}

static __global__ void fill(float* p, std::int64_t n, float scale) {
  FOR_EACH(i, n) {
    std::uint32_t h = std::uint32_t(i) * 2654435761u;
    h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
    p[i] = (float(h >> 8) * 0x1p-24f - 0.5f) * scale;
  }
}
static __global__ void fill16(bf16* p, std::int64_t n) {
  FOR_EACH(i, n) {
    std::uint32_t h = std::uint32_t(i) * 2654435761u;
    h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
    p[i] = __float2bfloat16((float(h >> 8) * 0x1p-24f - 0.5f) * 4);
  }
}
static __global__ void copy16(const uint4* __restrict__ from, uint4* __restrict__ to, std::int64_t n) {
  FOR_EACH(i, n) to[i] = from[i];
}
static __global__ void copy16_of_4(const uint4* __restrict__ from, uint4* __restrict__ to, std::int64_t n) {
  const std::int64_t step = std::int64_t(gridDim.x) * blockDim.x;
  for (std::int64_t i = thread(); i < n; i += 4 * step) {
    uint4 v[4];
    for (int k = 0; k < 4; ++k)
      if (i + k * step < n) v[k] = from[i + k * step];
    for (int k = 0; k < 4; ++k)
      if (i + k * step < n) to[i + k * step] = v[k];
  }
}
static __global__ void __launch_bounds__(256)
    rmsnorm(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ y, float* __restrict__ rstd,
            int C) {  // one row a block, 8 elements a thread: C is 2048
  const std::int64_t at = std::int64_t(blockIdx.x) * C + threadIdx.x * 8;
  const Eight a = load8(x + at);
  float s = 0;
  for (int i = 0; i < 8; ++i) s = fmaf(a.v[i], a.v[i], s);
  const float r = 1.0f / sqrtf(block_sum(s) / float(C) + 1e-5f);
  const Eight g = load8(w + threadIdx.x * 8);
  Eight o;
  for (int i = 0; i < 8; ++i) o.v[i] = a.v[i] * r * g.v[i];
  store8(y + at, o);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}
static __global__ void __launch_bounds__(256)
    residual_rmsnorm(const bf16* __restrict__ x, const bf16* __restrict__ add, const bf16* __restrict__ w,
                     bf16* __restrict__ sum, bf16* __restrict__ y, float* __restrict__ rstd, int C) {
  const std::int64_t at = std::int64_t(blockIdx.x) * C + threadIdx.x * 8;
  Eight a = load8(x + at);
  const Eight b = load8(add + at);
  float s = 0;
  for (int i = 0; i < 8; ++i) {
    a.v[i] = __bfloat162float(__float2bfloat16(a.v[i] + b.v[i]));
    s = fmaf(a.v[i], a.v[i], s);
  }
  store8(sum + at, a);
  const float r = 1.0f / sqrtf(block_sum(s) / float(C) + 1e-5f);
  const Eight g = load8(w + threadIdx.x * 8);
  Eight o;
  for (int i = 0; i < 8; ++i) o.v[i] = a.v[i] * r * g.v[i];
  store8(y + at, o);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
}
static __global__ void __launch_bounds__(256)
    rmsnorm_dx(const bf16* __restrict__ dy, const bf16* __restrict__ x, const bf16* __restrict__ w,
               const float* __restrict__ rstd, bf16* __restrict__ dx, int C) {
  const std::int64_t at = std::int64_t(blockIdx.x) * C + threadIdx.x * 8;
  const Eight d = load8(dy + at), a = load8(x + at), g = load8(w + threadIdx.x * 8);
  float s = 0;
  for (int i = 0; i < 8; ++i) s = fmaf(d.v[i] * g.v[i], a.v[i], s);
  const float r = rstd[blockIdx.x], t = -block_sum(s) * r * r / float(C);
  Eight o;
  for (int i = 0; i < 8; ++i) o.v[i] = r * fmaf(a.v[i], t, d.v[i] * g.v[i]);
  store8(dx + at, o);
}
static __global__ void swiglu(const bf16* __restrict__ gate, const bf16* __restrict__ up, bf16* __restrict__ h,
                              std::int64_t eights) {
  FOR_EACH(i, eights) {
    const Eight g = load8(gate + 8 * i), u = load8(up + 8 * i);
    Eight o;
    for (int k = 0; k < 8; ++k) o.v[k] = g.v[k] / (1.0f + __expf(-g.v[k])) * u.v[k];
    store8(h + 8 * i, o);
  }
}
static __global__ void swiglu_grad(const bf16* __restrict__ dh, const bf16* __restrict__ gate,
                                   const bf16* __restrict__ up, bf16* __restrict__ dgate, bf16* __restrict__ dup,
                                   std::int64_t eights) {
  FOR_EACH(i, eights) {
    const Eight d = load8(dh + 8 * i), g = load8(gate + 8 * i), u = load8(up + 8 * i);
    Eight a, b;
    for (int k = 0; k < 8; ++k) {
      const float s = 1.0f / (1.0f + __expf(-g.v[k])), silu = g.v[k] * s;
      b.v[k] = d.v[k] * silu;
      a.v[k] = d.v[k] * u.v[k] * fmaf(silu, 1.0f - s, s);
    }
    store8(dgate + 8 * i, a);
    store8(dup + 8 * i, b);
  }
}
/// The same with the exact exponential of the CPU (kernels/cpu/simd.h) and a division rounded correctly.
__device__ __forceinline__ float exact_exp(float x) {
  const float above = x < -104.0f ? -104.0f : x, clamped = above > 89.0f ? 89.0f : above, shift = 12582912.0f;
  const float n = fmaf(clamped, 1.44269504088896341f, shift) - shift;
  float r = fmaf(n, -0.693359375f, clamped);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  const int k = static_cast<int>(n), half = k >> 1;
  return (fmaf(p, r * r, r) + 1.0f) * __int_as_float((half + 127) << 23) * __int_as_float((k - half + 127) << 23);
}
static __global__ void swiglu_exact(const bf16* __restrict__ gate, const bf16* __restrict__ up, bf16* __restrict__ h,
                                    std::int64_t eights) {
  FOR_EACH(i, eights) {
    const Eight g = load8(gate + 8 * i), u = load8(up + 8 * i);
    Eight o;
    for (int k = 0; k < 8; ++k) o.v[k] = g.v[k] * (1.0f / (1.0f + exact_exp(-g.v[k]))) * u.v[k];
    store8(h + 8 * i, o);
  }
}
static __global__ void rope(bf16* __restrict__ x, const float2* __restrict__ turn, std::int64_t n, int T,
                            int heads) {  // pairs of halves of 128
  FOR_EACH(i, n / 16) {
    const std::int64_t head = i / 8;
    const int c = int(i % 8) * 8;
    const std::int64_t t = head / heads % T;
    bf16* at = x + head * 128 + c;
    const Eight a = load8(at), b = load8(at + 64);
    Eight p, q;
    for (int k = 0; k < 8; ++k) {
      const float2 w = turn[t * 64 + c + k];
      p.v[k] = a.v[k] * w.x - b.v[k] * w.y;
      q.v[k] = b.v[k] * w.x + a.v[k] * w.y;
    }
    store8(at, p);
    store8(at + 64, q);
  }
}

struct AdamWScalars {
  float decay, rate, root, scale, eps, keep1, add1, keep2, add2;
};
__device__ __forceinline__ void adamw_one(float& p, float g, float& m, float& v, const AdamWScalars& a) {
  const float x = g * a.scale;
  m = fmaf(x, a.add1, m * a.keep1);
  v = fmaf(x * x, a.add2, v * a.keep2);
  p = fmaf(m / fmaf(sqrtf(v), a.root, a.eps), a.rate, p * a.decay);
}
/// kind 0: gradient in f32; 1: in f32, and a bf16 copy; 2: an exact sum, and a bf16 copy.
template <int kind>
static __global__ void adamw(float4* __restrict__ p, const float4* __restrict__ g, const longlong2* __restrict__ sums,
                             float4* __restrict__ m, float4* __restrict__ v, uint2* __restrict__ copy,
                             std::int64_t fours, AdamWScalars a, double unit) {
  FOR_EACH(i, fours) {
    float4 P = p[i], M = m[i], V = v[i], G;
    if (kind == 2) {
      const longlong2 s = sums[2 * i], t = sums[2 * i + 1];
      G = {float(double(s.x) * unit), float(double(s.y) * unit), float(double(t.x) * unit), float(double(t.y) * unit)};
    } else G = g[i];
    adamw_one(P.x, G.x, M.x, V.x, a);
    adamw_one(P.y, G.y, M.y, V.y, a);
    adamw_one(P.z, G.z, M.z, V.z, a);
    adamw_one(P.w, G.w, M.w, V.w, a);
    p[i] = P;
    m[i] = M;
    v[i] = V;
    if (kind >= 1) {
      const bf162 lo = __floats2bfloat162_rn(P.x, P.y), hi = __floats2bfloat162_rn(P.z, P.w);
      copy[i] = {*reinterpret_cast<const unsigned*>(&lo), *reinterpret_cast<const unsigned*>(&hi)};
    }
  }
}
/// sums += terms, each rounded once; keeps the largest |term|.
template <bool add>
static __global__ void put_terms(longlong2* __restrict__ sums, const float4* __restrict__ terms, std::int64_t fours,
                                 double scale, int* peak) {
  int seen = 0;
  const double middle = 0x1.8p52;
  const auto count = [&](float t) {
    seen = max(seen, __float_as_int(t) & 0x7FFFFFFF);
    return __double_as_longlong(fma(double(t), scale, middle)) - __double_as_longlong(middle);
  };
  FOR_EACH(i, fours) {
    const float4 t = terms[i];
    longlong2 a{}, b{};
    if (add) a = sums[2 * i], b = sums[2 * i + 1];
    a.x += count(t.x), a.y += count(t.y), b.x += count(t.z), b.y += count(t.w);
    sums[2 * i] = a;
    sums[2 * i + 1] = b;
  }
  seen = __reduce_max_sync(~0u, seen);
  if (threadIdx.x % 32 == 0) atomicMax(peak, seen);
}
/// The same, two elements a thread: a warp's accesses are one piece of memory.
template <bool add>
static __global__ void put_terms_of_2(longlong2* __restrict__ sums, const float2* __restrict__ terms, std::int64_t twos,
                                      double scale, int* peak) {
  int seen = 0;
  const double middle = 0x1.8p52;
  const auto count = [&](float t) {
    seen = max(seen, __float_as_int(t) & 0x7FFFFFFF);
    return __double_as_longlong(fma(double(t), scale, middle)) - __double_as_longlong(middle);
  };
  const std::int64_t step = std::int64_t(gridDim.x) * blockDim.x;
  for (std::int64_t i = thread(); i < twos; i += 4 * step) {
    float2 t[4];
    longlong2 a[4];
    for (int k = 0; k < 4; ++k) {
      const std::int64_t j = i + k * step;
      if (j >= twos) break;
      t[k] = terms[j];
      a[k] = add ? sums[j] : longlong2{};
    }
    for (int k = 0; k < 4; ++k) {
      const std::int64_t j = i + k * step;
      if (j >= twos) break;
      a[k].x += count(t[k].x), a[k].y += count(t[k].y);
      sums[j] = a[k];
    }
  }
  seen = __reduce_max_sync(~0u, seen);
  if (threadIdx.x % 32 == 0) atomicMax(peak, seen);
}
static __global__ void add_f32(float4* __restrict__ to, const float4* __restrict__ from, std::int64_t fours) {
  FOR_EACH(i, fours) {
    float4 a = to[i];
    const float4 b = from[i];
    a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
    to[i] = a;
  }
}
static __global__ void cast(const float4* __restrict__ from, uint2* __restrict__ to, std::int64_t fours) {
  FOR_EACH(i, fours) {
    const float4 v = from[i];
    const bf162 lo = __floats2bfloat162_rn(v.x, v.y), hi = __floats2bfloat162_rn(v.z, v.w);
    to[i] = {*reinterpret_cast<const unsigned*>(&lo), *reinterpret_cast<const unsigned*>(&hi)};
  }
}
static __global__ void square_sums(const float* __restrict__ x, std::int64_t rows, int cols,
                                   double* __restrict__ sums) {  // as kernels/square_sums.h: eight lanes a row
  const std::int64_t r = thread() / 8;
  double s = 0;
  if (r < rows)
    for (int c = threadIdx.x % 8; c < cols; c += 8) {
      const double v = x[r * cols + c];
      s += v * v;
    }
  for (int o = 4; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
  if (r < rows && threadIdx.x % 8 == 0) sums[r] = s;
}
static __global__ void digest(const uint4* __restrict__ x, std::int64_t fours, unsigned long long* out) {
  const auto mix_a = [](std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  };
  const auto mix_b = [](std::uint64_t z) {
    z = (z ^ (z >> 33)) * 0xFF51AFD7ED558CCDull;
    z = (z ^ (z >> 33)) * 0xC4CEB9FE1A85EC53ull;
    return z ^ (z >> 33);
  };
  std::uint64_t a = 0, b = 0;
  FOR_EACH(i, fours) {
    const uint4 v = x[i];
    const std::uint32_t w[4] = {v.x, v.y, v.z, v.w};
    for (int k = 0; k < 4; ++k) {
      const std::uint64_t e = std::uint64_t(4 * i + k), u = w[k];
      a += mix_a(mix_b(u + 0x9E3779B97F4A7C15ull) + e * 0xD1342543DE82EF95ull);
      b += mix_b(mix_a(u ^ 0x2545F4914F6CDD1Dull) ^ (e + 1) * 0xAF251AF3B0F025B5ull);
    }
  }
  atomicAdd(out, a);
  atomicAdd(out + 1, b);
}
/// One row of bf16 logits a block: the row's log-sum-exp in one pass, then the gradient in place.
static __global__ void __launch_bounds__(1024) cross_entropy(bf16* __restrict__ logits, const int* __restrict__ targets,
                                                             float* __restrict__ loss, int n, float scale) {
  bf16* row = logits + std::int64_t(blockIdx.x) * n;
  float top = -INFINITY, sum = 0;
  for (int c = threadIdx.x * 8; c < n; c += blockDim.x * 8) {
    const Eight e = load8(row + c);
    float mine = e.v[0];
    for (int i = 1; i < 8; ++i) mine = fmaxf(mine, e.v[i]);
    const float next = fmaxf(top, mine);
    sum *= __expf(top - next);
    for (int i = 0; i < 8; ++i) sum += __expf(e.v[i] - next);
    top = next;
  }
  __shared__ float tops[32];
  float all = top;
  for (int o = 16; o; o /= 2) all = fmaxf(all, __shfl_xor_sync(~0u, all, o));
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = all;
  __syncthreads();
  for (int i = 0; i < 32; ++i) all = fmaxf(all, tops[i]);
  const float lse = logf(block_sum(sum * __expf(top - all))) + all;
  const int target = targets[blockIdx.x];
  if (threadIdx.x == 0) loss[blockIdx.x] = lse - __bfloat162float(row[target]);
  __syncthreads();
  for (int c = threadIdx.x * 8; c < n; c += blockDim.x * 8) {
    Eight e = load8(row + c);
    for (int i = 0; i < 8; ++i) e.v[i] = (__expf(e.v[i] - lse) - (c + i == target ? 1.0f : 0.0f)) * scale;
    store8(row + c, e);
  }
}

}  // namespace training
