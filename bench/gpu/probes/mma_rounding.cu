// How a tensor core rounds: products mma.sync.m16n8k16 of bf16 into f32, of random fragments whose exponents spread,
// with and without a summand. Argument: the file for the results, 128 floats a product; tools compare them with models
// of the sum.
#include <cuda_bf16.h>

#include <cmath>
#include <cstring>

#include "fact.h"

using namespace probe;

namespace {

constexpr int products = 4096;

/// Fragments of lane l as PTX has them (g = l / 4, t = l % 4).
__global__ void multiply(const std::uint16_t* a, const std::uint16_t* b, const float* c, float* d) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  a += blockIdx.x * 256, b += blockIdx.x * 128, c += blockIdx.x * 128,
      d += blockIdx.x * 128;  // a (16, 16), b (8, 16), c and d (16, 8)
  const auto pair = [](const std::uint16_t* p) { return *reinterpret_cast<const std::uint32_t*>(p); };
  const std::uint32_t fa[4] = {pair(a + g * 16 + 2 * t), pair(a + (g + 8) * 16 + 2 * t), pair(a + g * 16 + 2 * t + 8),
                               pair(a + (g + 8) * 16 + 2 * t + 8)};
  const std::uint32_t fb[2] = {pair(b + g * 16 + 2 * t), pair(b + g * 16 + 2 * t + 8)};
  float v[4] = {c[g * 8 + 2 * t], c[g * 8 + 2 * t + 1], c[(g + 8) * 8 + 2 * t], c[(g + 8) * 8 + 2 * t + 1]};
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
      : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  d[g * 8 + 2 * t] = v[0], d[g * 8 + 2 * t + 1] = v[1], d[(g + 8) * 8 + 2 * t] = v[2],
                d[(g + 8) * 8 + 2 * t + 1] = v[3];
}

}  // namespace

int main(int, char** argv) {
  CUDA(cudaSetDevice(0));
  std::uint64_t state = 88172645463325252ull;
  const auto next = [&] { return state ^= state << 13, state ^= state >> 7, state ^= state << 17; };
  // Product i: exponents spread by i % 16 either way; every second one has a summand.
  auto *a = pinned<std::uint16_t>(products * 256), *b = pinned<std::uint16_t>(products * 128);
  auto *c = pinned<float>(products * 128), *d = pinned<float>(products * 128);
  const auto value = [&](int spread) {
    const int exponent = int(next() % std::uint64_t(2 * spread + 1)) - spread;
    return std::ldexp(1.0f + float(next() >> 57) * 0x1p-7f, exponent) * (next() & 1 ? -1.0f : 1.0f);
  };
  const auto high = [](float f) {
    std::uint32_t u;
    std::memcpy(&u, &f, 4);
    return std::uint16_t(u >> 16);
  };
  for (int i = 0; i < products; ++i) {
    const int spread = i % 16;
    for (int k = 0; k < 256; ++k) a[i * 256 + k] = high(value(spread));
    for (int k = 0; k < 128; ++k) b[i * 128 + k] = high(value(spread));
    for (int k = 0; k < 128; ++k)
      c[i * 128 + k] = i / 16 % 2 ? value(spread + 2) * (1.0f + float(next() >> 41) * 0x1p-23f) : 0.0f;
  }
  multiply<<<products, 32>>>(a, b, c, d);
  CUDA(cudaDeviceSynchronize());
  long nearest = 0;
  for (int i = 0; i < products; ++i)
    for (int r = 0; r < 16; ++r)
      for (int n = 0; n < 8; ++n) {
        long double sum = c[i * 128 + r * 8 + n];
        for (int k = 0; k < 16; ++k) {
          std::uint32_t u = std::uint32_t(a[i * 256 + r * 16 + k]) << 16, v = std::uint32_t(b[i * 128 + n * 16 + k])
                                                                              << 16;
          float x, y;
          std::memcpy(&x, &u, 4);
          std::memcpy(&y, &v, 4);
          sum += static_cast<long double>(x) * y;
        }
        nearest += static_cast<float>(sum) == d[i * 128 + r * 8 + n];
      }
  fact("mma: results that are the exact sum rounded to nearest", text("%ld of %d", nearest, products * 128));
  if (std::FILE* f = std::fopen(argv[1], "wb")) {
    for (const auto& [p, n] : std::initializer_list<std::pair<const void*, std::size_t>>{
             {a, products * 512}, {b, products * 256}, {c, products * 512}, {d, products * 512}})
      std::fwrite(p, 1, n, f);
    std::fclose(f);
  }
}
