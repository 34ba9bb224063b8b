// Memory-bound kernels of a training step against the rate of a plain copy: norms, activations, AdamW, casts, exact
// sums of gradients, cross-entropy. The kernels are plain: 16 bytes an access, nothing tuned.
#include "training_kernels.cuh"

#include "fact.h"

using namespace probe;
using namespace training;

int main() {
  CUDA(cudaSetDevice(0));
  const cudaStream_t s = new_stream();
  constexpr std::int64_t n = std::int64_t{1} << 30, GiB4 = n * 4;  // of 4 bytes
  auto *a = on_device<float>(n), *b = on_device<float>(n), *c = on_device<float>(n), *d = on_device<float>(n);
  fill<<<1024, 256>>>(a, n, 4);
  fill<<<1024, 256>>>(b, n, 1);
  fill<<<1024, 256>>>(c, n, 1);
  fill<<<1024, 256>>>(d, n, 1);
  CUDA(cudaDeviceSynchronize());
  double ceiling = 0;
  const auto measure = [&](const char* what, double bytes, auto&& launch) {
    const auto ms = timed_ms(s, 15, [&](int) { launch(); });
    CUDA(cudaGetLastError());
    const double m = median(ms), rate = bytes / m / 1e6;
    if (ceiling == 0) ceiling = rate;
    fact(what, text("%.4f ms, %.0f GB/s, %.1f %% of the copy", m, rate, 100 * rate / ceiling));
  };
  constexpr int wide = 132 * 8;
  measure("copy of 4 GiB by cudaMemcpyAsync", 2.0 * GiB4,
          [&] { CUDA(cudaMemcpyAsync(b, a, GiB4, cudaMemcpyDeviceToDevice, s)); });
  for (const int blocks : {132 * 4, 132 * 8, 132 * 16, 132 * 64, 132 * 512})
    measure(text("copy of 4 GiB, 16 bytes a thread, %d blocks of 256", blocks).c_str(), 2.0 * GiB4,
            [&] { copy16<<<blocks, 256, 0, s>>>(reinterpret_cast<uint4*>(a), reinterpret_cast<uint4*>(b), n / 4); });
  for (const int blocks : {132 * 4, 132 * 8, 132 * 64})
    measure(text("copy of 4 GiB, four 16-byte loads in flight, %d blocks of 256", blocks).c_str(), 2.0 * GiB4, [&] {
      copy16_of_4<<<blocks, 256, 0, s>>>(reinterpret_cast<uint4*>(a), reinterpret_cast<uint4*>(b), n / 4);
    });
  measure("memset of 4 GiB", 1.0 * GiB4, [&] { CUDA(cudaMemsetAsync(b, 0, GiB4, s)); });
  fill<<<1024, 256, 0, s>>>(b, n, 1);

  constexpr std::int64_t rows = 16384, C = 2048, F = 5504, V = 50304;
  auto *x = on_device<bf16>(rows * V), *y = on_device<bf16>(rows * F), *z = on_device<bf16>(rows * F),
       *u = on_device<bf16>(rows * F), *w = on_device<bf16>(rows * F);
  for (auto* p : {y, z, u, w}) fill16<<<1024, 256, 0, s>>>(p, rows * F);
  fill16<<<1024, 256, 0, s>>>(x, rows * V);
  auto* rstd = on_device<float>(rows);
  const double row_bytes = double(rows) * C * 2, ffn_bytes = double(rows) * F * 2;
  measure("RMSNorm forward, 16384 x 2048 bf16", 2 * row_bytes, [&] { rmsnorm<<<rows, 256, 0, s>>>(y, u, z, rstd, C); });
  measure("residual + RMSNorm forward", 4 * row_bytes,
          [&] { residual_rmsnorm<<<rows, 256, 0, s>>>(y, z, u, w, x, rstd, C); });
  measure("RMSNorm gradient of x", 3 * row_bytes, [&] { rmsnorm_dx<<<rows, 256, 0, s>>>(y, z, u, rstd, w, C); });
  measure("SwiGLU forward, 16384 x 5504 bf16", 3 * ffn_bytes,
          [&] { swiglu<<<wide * 8, 256, 0, s>>>(y, z, u, rows * F / 8); });
  measure("SwiGLU forward, exact exponential and division", 3 * ffn_bytes,
          [&] { swiglu_exact<<<wide * 8, 256, 0, s>>>(y, z, u, rows * F / 8); });
  measure("SwiGLU gradient", 5 * ffn_bytes, [&] { swiglu_grad<<<wide * 8, 256, 0, s>>>(y, z, u, w, x, rows * F / 8); });
  measure("RoPE in place, 16384 x 2048 bf16", 2 * row_bytes,
          [&] { rope<<<wide * 8, 256, 0, s>>>(y, reinterpret_cast<float2*>(b), rows * C, 2048, 16); });
  auto* targets = on_device<int>(rows);
  CUDA(cudaMemsetAsync(targets, 0, rows * 4, s));
  fill16<<<1024, 256, 0, s>>>(x, rows * V);
  measure("cross-entropy and gradient in place, 16384 x 50304 bf16 (two reads, one write)", 3.0 * rows * V * 2,
          [&] { cross_entropy<<<rows, 1024, 0, s>>>(x, targets, rstd, V, 1.0f / rows); });
  CUDA(cudaFree(x));

  const AdamWScalars h{0.9999f, -3e-4f, 1.1f, 0.9f, 1e-8f, 0.9f, 0.1f, 0.95f, 0.05f};
  constexpr std::int64_t P = n;  // parameters: 1.07 G
  auto* copy = on_device<bf16>(P);
  auto* sums = on_device<long long>(P);
  auto* peak = on_device<int>(1);
  CUDA(cudaMemsetAsync(sums, 0, P * 8, s));
  CUDA(cudaMemsetAsync(peak, 0, 4, s));
  const auto four = [](float* p) { return reinterpret_cast<float4*>(p); };
  fill<<<1024, 256, 0, s>>>(d, n, 1);
  CUDA(cudaMemsetAsync(c, 0, GiB4, s));
  measure("AdamW, f32 gradient (28 bytes a parameter)", 28.0 * P, [&] {
    adamw<0><<<wide * 4, 256, 0, s>>>(four(a), four(d), nullptr, four(b), four(c), nullptr, P / 4, h, 0);
  });
  measure("AdamW, f32 gradient, bf16 copy (30 bytes)", 30.0 * P, [&] {
    adamw<1><<<wide * 4, 256, 0, s>>>(four(a), four(d), nullptr, four(b), four(c), reinterpret_cast<uint2*>(copy),
                                      P / 4, h, 0);
  });
  measure("AdamW, exact sum as gradient, bf16 copy (34 bytes)", 34.0 * P, [&] {
    adamw<2><<<wide * 4, 256, 0, s>>>(four(a), nullptr, reinterpret_cast<longlong2*>(sums), four(b), four(c),
                                      reinterpret_cast<uint2*>(copy), P / 4, h, 0x1p-40);
  });
  measure("exact sums = f32 terms (12 bytes)", 12.0 * P, [&] {
    put_terms<false><<<wide * 4, 256, 0, s>>>(reinterpret_cast<longlong2*>(sums), four(d), P / 4, 0x1p40, peak);
  });
  measure("exact sums += f32 terms (20 bytes)", 20.0 * P, [&] {
    put_terms<true><<<wide * 4, 256, 0, s>>>(reinterpret_cast<longlong2*>(sums), four(d), P / 4, 0x1p40, peak);
  });
  for (const int blocks : {132 * 4, 132 * 8, 132 * 32}) {
    measure(text("exact sums = f32 terms, two a thread, %d blocks (12 bytes)", blocks).c_str(), 12.0 * P, [&] {
      put_terms_of_2<false><<<blocks, 256, 0, s>>>(reinterpret_cast<longlong2*>(sums), reinterpret_cast<float2*>(d),
                                                   P / 2, 0x1p40, peak);
    });
    measure(text("exact sums += f32 terms, two a thread, %d blocks (20 bytes)", blocks).c_str(), 20.0 * P, [&] {
      put_terms_of_2<true><<<blocks, 256, 0, s>>>(reinterpret_cast<longlong2*>(sums), reinterpret_cast<float2*>(d),
                                                  P / 2, 0x1p40, peak);
    });
  }
  measure("f32 sums += f32 terms (12 bytes)", 12.0 * P,
          [&] { add_f32<<<wide * 4, 256, 0, s>>>(four(b), four(d), P / 4); });
  measure("cast f32 to bf16 (6 bytes)", 6.0 * P,
          [&] { cast<<<wide * 4, 256, 0, s>>>(four(a), reinterpret_cast<uint2*>(copy), P / 4); });
  auto* squares = on_device<double>(P / 2048);
  measure("square sums of rows of 2048 in double (4 bytes)", 4.0 * P,
          [&] { square_sums<<<P / 2048 * 8 / 256, 256, 0, s>>>(a, P / 2048, 2048, squares); });
  measure("digest (4 bytes)", 4.0 * P, [&] {
    digest<<<wide, 256, 0, s>>>(reinterpret_cast<uint4*>(a), P / 4, reinterpret_cast<unsigned long long*>(sums));
  });
}
