#include "step_kernels.h"

#include "training_kernels.cuh"

namespace training {
namespace {

constexpr int C = 2048, F = 5504, blocks = 132 * 32;

__global__ void uniform(float* f, bf16* h, std::int64_t n, float scale, std::uint32_t seed) {
  FOR_EACH(i, n) {
    std::uint32_t r = std::uint32_t(i) * 2654435761u ^ seed;
    float v = 0;
    for (int k = 0; k < 4; ++k) {
      r ^= r >> 16, r *= 0x7feb352du, r ^= r >> 15, r *= 0x846ca68bu, r ^= r >> 16;
      v += float(r >> 8) * 0x1p-24f - 0.5f;
    }
    v *= 1.7320508f * scale;
    if (f) f[i] = v;
    else h[i] = __float2bfloat16(v);
  }
}
__global__ void fill_ones(bf16* p, std::int64_t n) { FOR_EACH(i, n) p[i] = __float2bfloat16(1.0f); }
__global__ void turns(float2* table, int T) {
  FOR_EACH(i, std::int64_t(T) * 64) {
    const float angle = float(i / 64) * powf(10000.0f, -float(i % 64) / 64);
    table[i] = {cosf(angle), sinf(angle)};
  }
}
/// One row a block: dx, with the residual's gradient added.
__global__ void __launch_bounds__(256)
    norm_dx(const bf16* __restrict__ dy, const bf16* __restrict__ x, const bf16* __restrict__ w,
            const float* __restrict__ rstd, const bf16* __restrict__ more, bf16* __restrict__ dx) {
  const std::int64_t at = std::int64_t(blockIdx.x) * C + threadIdx.x * 8;
  const Eight d = load8(dy + at), a = load8(x + at), g = load8(w + threadIdx.x * 8);
  float s = 0;
  for (int i = 0; i < 8; ++i) s = fmaf(d.v[i] * g.v[i], a.v[i], s);
  const float r = rstd[blockIdx.x], t = -block_sum(s) * r * r / float(C);
  Eight o;
  for (int i = 0; i < 8; ++i) o.v[i] = r * fmaf(a.v[i], t, d.v[i] * g.v[i]);
  if (more) {
    const Eight m = load8(more + at);
    for (int i = 0; i < 8; ++i) o.v[i] += m.v[i];
  }
  store8(dx + at, o);
}
/// Column sums of dy * x * rstd over 128 rows a block; a second kernel adds the blocks' parts.
__global__ void __launch_bounds__(256) norm_dw(const bf16* __restrict__ dy, const bf16* __restrict__ x,
                                               const float* __restrict__ rstd, float* __restrict__ parts) {
  Eight sum{};
  for (int r = blockIdx.x * 128; r < int(blockIdx.x) * 128 + 128; ++r) {
    const std::int64_t at = std::int64_t(r) * C + threadIdx.x * 8;
    const Eight d = load8(dy + at), a = load8(x + at);
    const float s = rstd[r];
    for (int i = 0; i < 8; ++i) sum.v[i] = fmaf(d.v[i] * a.v[i], s, sum.v[i]);
  }
  for (int i = 0; i < 8; ++i) parts[std::int64_t(blockIdx.x) * C + threadIdx.x * 8 + i] = sum.v[i];
}
__global__ void add_parts(const float* __restrict__ parts, int n, float* __restrict__ dw) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0;
  for (int i = 0; i < n; ++i) s += parts[std::int64_t(i) * C + c];
  dw[c] = s;
}
__global__ void rope_rows(bf16* __restrict__ qkv, const float2* __restrict__ turn, std::int64_t rows, int T,
                          float direction) {
  FOR_EACH(i, rows * 32 * 8) {
    const std::int64_t row = i / 256;
    const int head = int(i / 8 % 32), c = int(i % 8) * 8;
    bf16* at = qkv + row * 3 * C + head * 128 + c;
    const Eight a = load8(at), b = load8(at + 64);
    Eight p, q;
    for (int k = 0; k < 8; ++k) {
      const float2 w = turn[row % T * 64 + c + k];
      const float sine = w.y * direction;
      p.v[k] = a.v[k] * w.x - b.v[k] * sine;
      q.v[k] = b.v[k] * w.x + a.v[k] * sine;
    }
    store8(at, p);
    store8(at + 64, q);
  }
}
__global__ void swiglu_of_rows(const bf16* __restrict__ gate_up, bf16* __restrict__ h, std::int64_t rows) {
  FOR_EACH(i, rows * (F / 8)) {
    const std::int64_t row = i / (F / 8), c = i % (F / 8) * 8;
    const Eight g = load8(gate_up + row * 2 * F + c), u = load8(gate_up + row * 2 * F + F + c);
    Eight o;
    for (int k = 0; k < 8; ++k) o.v[k] = g.v[k] / (1.0f + __expf(-g.v[k])) * u.v[k];
    store8(h + row * F + c, o);
  }
}
__global__ void swiglu_of_rows_grad(const bf16* __restrict__ dh, const bf16* __restrict__ gate_up,
                                    bf16* __restrict__ d_gate_up, std::int64_t rows) {
  FOR_EACH(i, rows * (F / 8)) {
    const std::int64_t row = i / (F / 8), c = i % (F / 8) * 8;
    const Eight d = load8(dh + row * F + c), g = load8(gate_up + row * 2 * F + c),
                u = load8(gate_up + row * 2 * F + F + c);
    Eight a, b;
    for (int k = 0; k < 8; ++k) {
      const float s = 1.0f / (1.0f + __expf(-g.v[k])), silu = g.v[k] * s;
      b.v[k] = d.v[k] * silu;
      a.v[k] = d.v[k] * u.v[k] * fmaf(silu, 1.0f - s, s);
    }
    store8(d_gate_up + row * 2 * F + c, a);
    store8(d_gate_up + row * 2 * F + F + c, b);
  }
}
__global__ void gather(const int* __restrict__ tokens, const bf16* __restrict__ table, bf16* __restrict__ x,
                       std::int64_t rows) {
  FOR_EACH(i, rows * (C / 8)) {
    const std::int64_t row = i / (C / 8), c = i % (C / 8) * 8;
    *reinterpret_cast<uint4*>(x + row * C + c) =
        *reinterpret_cast<const uint4*>(table + std::int64_t(tokens[row]) * C + c);
  }
}

const bf16* in(const void* p) { return static_cast<const bf16*>(p); }
bf16* out(void* p) { return static_cast<bf16*>(p); }

}  // namespace

void random_bf16(void* p, std::int64_t n, float scale, std::uint32_t seed) {
  uniform<<<blocks, 256>>>(nullptr, out(p), n, scale, seed);
}
void random_f32(float* p, std::int64_t n, float scale, std::uint32_t seed) {
  uniform<<<blocks, 256>>>(p, nullptr, n, scale, seed);
}
void ones(void* p, std::int64_t n) { fill_ones<<<blocks, 256>>>(out(p), n); }
void rope_table(void* table, int T, cudaStream_t s) { turns<<<132, 256, 0, s>>>(static_cast<float2*>(table), T); }
void norm(const void* x, const void* add, const void* w, void* sum, void* y, float* rstd, std::int64_t rows,
          cudaStream_t s) {
  if (add) residual_rmsnorm<<<unsigned(rows), 256, 0, s>>>(in(x), in(add), in(w), out(sum), out(y), rstd, C);
  else rmsnorm<<<unsigned(rows), 256, 0, s>>>(in(x), in(w), out(y), rstd, C);
}
void norm_grad(const void* dy, const void* x, const void* w, const float* rstd, const void* more, void* dx,
               float* parts, float* dw, std::int64_t rows, cudaStream_t s) {
  norm_dw<<<unsigned(rows / 128), 256, 0, s>>>(in(dy), in(x), rstd, parts);
  add_parts<<<C / 256, 256, 0, s>>>(parts, int(rows / 128), dw);
  norm_dx<<<unsigned(rows), 256, 0, s>>>(in(dy), in(x), in(w), rstd, in(more), out(dx));
}
void rope_qk(void* qkv, const void* table, std::int64_t rows, int T, float direction, cudaStream_t s) {
  rope_rows<<<132 * 64, 256, 0, s>>>(out(qkv), static_cast<const float2*>(table), rows, T, direction);
}
void swiglu_rows(const void* gate_up, void* h, std::int64_t rows, cudaStream_t s) {
  swiglu_of_rows<<<132 * 64, 256, 0, s>>>(in(gate_up), out(h), rows);
}
void swiglu_rows_grad(const void* dh, const void* gate_up, void* d_gate_up, std::int64_t rows, cudaStream_t s) {
  swiglu_of_rows_grad<<<132 * 64, 256, 0, s>>>(in(dh), in(gate_up), out(d_gate_up), rows);
}
void embed(const int* tokens, const void* table, void* x, std::int64_t rows, cudaStream_t s) {
  gather<<<132 * 64, 256, 0, s>>>(tokens, in(table), out(x), rows);
}
void loss_and_grad(void* logits, const int* targets, float* losses, std::int64_t rows, int vocabulary, float scale,
                   cudaStream_t s) {
  cross_entropy<<<unsigned(rows), 1024, 0, s>>>(out(logits), targets, losses, vocabulary, scale);
}
void add_exactly(std::int64_t* sums, const float* terms, std::int64_t n, int* peak, cudaStream_t s) {
  put_terms_of_2<true><<<132 * 8, 256, 0, s>>>(reinterpret_cast<longlong2*>(sums),
                                               reinterpret_cast<const float2*>(terms), n / 2, 0x1p46, peak);
}
void update(float* p, const float* gradient, const std::int64_t* sums, float* m, float* v, void* copy, std::int64_t n,
            cudaStream_t s) {
  const AdamWScalars h{0.9999f, -1e-7f, 1.1f, 1.0f, 1e-8f, 0.9f, 0.1f, 0.95f, 0.05f};
  const auto four = [](float* f) { return reinterpret_cast<float4*>(f); };
  if (sums)
    adamw<2><<<132 * 32, 256, 0, s>>>(four(p), nullptr, reinterpret_cast<const longlong2*>(sums), four(m), four(v),
                                      static_cast<uint2*>(copy), n / 4, h, 0x1p-46);
  else
    adamw<1><<<132 * 32, 256, 0, s>>>(four(p), reinterpret_cast<const float4*>(gradient), nullptr, four(m), four(v),
                                      static_cast<uint2*>(copy), n / 4, h, 0);
}

}  // namespace training
