// Whether kernels that are exact by construction give the CPU's bits on the GPU. Built twice: with -fmad=false, as CUDA
// kernels of the project are to be built, and with nvcc's default, which fuses what it likes.
#include "bits.h"

#include <cuda_bf16.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "fact.h"

using namespace probe;

namespace {

__device__ __forceinline__ std::int64_t thread() { return std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
#define FOR_EACH(i, n) for (std::int64_t i = thread(); i < (n); i += std::int64_t(gridDim.x) * blockDim.x)

/// exp as kernels/cpu/simd.h computes it.
__device__ float exact_exp(float x) {
  const float above = x < -104.0f ? -104.0f : x, clamped = above > 89.0f ? 89.0f : above;
  const float shift = 12582912.0f;
  const float n = fmaf(clamped, 1.44269504088896341f, shift) - shift;
  float r = fmaf(n, -0.693359375f, clamped);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  const int k = static_cast<int>(n), half = k >> 1;  // a NaN becomes 0: the factor then is 1
  return (fmaf(p, r * r, r) + 1.0f) * __int_as_float((half + 127) << 23) * __int_as_float((k - half + 127) << 23);
}
__device__ float exact_sigmoid(float x) { return 1.0f / (1.0f + exact_exp(-x)); }

__global__ void exp_of_bits(std::uint32_t first, std::int64_t n, float* out) {
  FOR_EACH(i, n) out[i] = exact_exp(__uint_as_float(first + std::uint32_t(i)));
}
__global__ void library_exp_of_bits(std::uint32_t first, std::int64_t n, float* out) {
  FOR_EACH(i, n) out[i] = expf(__uint_as_float(first + std::uint32_t(i)));
}
__global__ void sqrt_of_bits(std::uint32_t first, std::int64_t n, float* out) {
  FOR_EACH(i, n) out[i] = sqrtf(__uint_as_float(first + std::uint32_t(i)));
}
__global__ void bf16_of_bits(std::uint32_t first, std::int64_t n, __nv_bfloat16* out) {
  FOR_EACH(i, n) out[i] = __float2bfloat16_rn(__uint_as_float(first + std::uint32_t(i)));
}
__global__ void division(const float* a, const float* b, std::int64_t n, float* out) {
  FOR_EACH(i, n) out[i] = a[i] / b[i];
}
__global__ void fused(const float* a, const float* b, const float* c, std::int64_t n, float* out) {
  FOR_EACH(i, n) out[i] = fmaf(a[i], b[i], c[i]);
}

struct AdamWScalars {
  float decay, rate, root, scale, eps, keep1, add1, keep2, add2;
};
__device__ void adamw_one(float& p, float g, float& m, float& v, const AdamWScalars& a) {
  const float x = g * a.scale;
  m = fmaf(x, a.add1, m * a.keep1);
  v = fmaf(x * x, a.add2, v * a.keep2);
  p = fmaf(m / fmaf(sqrtf(v), a.root, a.eps), a.rate, p * a.decay);
}
__global__ void adamw(float* p, const float* g, float* m, float* v, std::int64_t n, AdamWScalars a) {
  FOR_EACH(i, n) adamw_one(p[i], g[i], m[i], v[i], a);
}
__global__ void adamw_sums(float* p, const long long* g, double unit, float* m, float* v, std::int64_t n,
                           AdamWScalars a) {
  FOR_EACH(i, n) adamw_one(p[i], static_cast<float>(static_cast<double>(g[i]) * unit), m[i], v[i], a);
}
/// Column c goes to accumulator c mod 8, in order of c: eight lanes a row.
__global__ void square_sums(const float* x, std::int64_t rows, std::int64_t cols, double* sums) {
  const std::int64_t r = thread() / 8;
  const int lane = threadIdx.x % 8;
  double s = 0;
  if (r < rows)
    for (std::int64_t c = lane; c < cols; c += 8) {
      const double v = x[r * cols + c];
      s = s + v * v;
    }
  s += __shfl_xor_sync(~0u, s, 4);
  s += __shfl_xor_sync(~0u, s, 2);
  s += __shfl_xor_sync(~0u, s, 1);
  if (r < rows && lane == 0) sums[r] = s;
}
__global__ void put_terms(long long* sums, const float* terms, std::int64_t n, double scale, bool accumulate,
                          int* peak) {
  int seen = 0;
  FOR_EACH(i, n) {
    const float t = terms[i];
    seen = max(seen, __float_as_int(t) & 0x7FFFFFFF);
    const double middle = 0x1.8p52;
    const long long c = __double_as_longlong(fma(double(t), scale, middle)) - __double_as_longlong(middle);
    sums[i] = accumulate ? sums[i] + c : c;
  }
  seen = __reduce_max_sync(~0u, seen);
  if (threadIdx.x % 32 == 0) atomicMax(peak, seen);
}
__global__ void round_sums(float* out, const long long* sums, std::int64_t n, double unit) {
  FOR_EACH(i, n) out[i] = static_cast<float>(static_cast<double>(sums[i]) * unit);
}

__device__ uint4 philox(std::uint64_t key, std::uint64_t lo, std::uint64_t hi) {
  std::uint32_t c0 = std::uint32_t(lo), c1 = std::uint32_t(lo >> 32), c2 = std::uint32_t(hi),
                c3 = std::uint32_t(hi >> 32);
  std::uint32_t k0 = std::uint32_t(key), k1 = std::uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const std::uint32_t n0 = std::uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = std::uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = std::uint32_t(p1);
    c3 = std::uint32_t(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}
__global__ void philox_words(std::uint64_t key, std::uint64_t first, std::uint64_t hi, std::int64_t counters,
                             uint4* words) {
  FOR_EACH(i, counters) words[i] = philox(key, first + std::uint64_t(i), hi);
}
__global__ void dropout(const float4* x, float4* y, std::int64_t fours, int threshold, float scale, std::uint64_t key,
                        std::uint64_t hi) {
  FOR_EACH(i, fours) {
    const uint4 w = philox(key, std::uint64_t(i), hi);
    const float4 v = x[i];
    y[i] = {int(w.x >> 8) >= threshold ? v.x * scale : 0.0f, int(w.y >> 8) >= threshold ? v.y * scale : 0.0f,
            int(w.z >> 8) >= threshold ? v.z * scale : 0.0f, int(w.w >> 8) >= threshold ? v.w * scale : 0.0f};
  }
}
__global__ void normals(std::uint64_t key, float std, std::int64_t pairs, float2* out) {
  FOR_EACH(j, pairs) {
    const uint4 w = philox(key, std::uint64_t(j / 2), 0);
    const std::uint32_t a = j % 2 ? w.z : w.x, b = j % 2 ? w.w : w.y;
    const double u = (double(a) + 1) * 0x1p-32, angle = 2 * 3.141592653589793 * double(b) * 0x1p-32;
    const double root = sqrt(-2 * log(u));
    out[j] = {float(std * (root * cos(angle))), float(std * (root * sin(angle)))};
  }
}
/// One warp a row, 64 accumulators as simd::reduce has them. REQUIRES cols to be a multiple of 64.
__global__ void rmsnorm(const float* x, const float* w, float* y, float* rstd, std::int64_t rows, std::int64_t cols,
                        float eps) {
  const std::int64_t r = thread() / 32;
  const int lane = threadIdx.x % 32;
  if (r >= rows) return;
  const float* row = x + r * cols;
  float a = 0, b = 0;
  for (std::int64_t c = lane; c < cols; c += 64) {
    a += row[c] * row[c];
    b += row[c + 32] * row[c + 32];
  }
  a += __shfl_xor_sync(~0u, a, 16);
  b += __shfl_xor_sync(~0u, b, 16);
  float s = a + b;
  for (int o = 8; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
  const float scale = 1.0f / sqrtf(s / float(cols) + eps);
  for (std::int64_t c = lane; c < cols; c += 32) y[r * cols + c] = row[c] * scale * w[c];
  if (lane == 0) rstd[r] = scale;
}
__global__ void swiglu(const float* gate, const float* up, float* h, std::int64_t n) {
  FOR_EACH(i, n) h[i] = gate[i] * exact_sigmoid(gate[i]) * up[i];
}
__global__ void swiglu_grad(const float* dh, const float* gate, const float* up, float* dgate, float* dup,
                            std::int64_t n) {
  FOR_EACH(i, n) {
    const float s = exact_sigmoid(gate[i]), silu = gate[i] * s;
    dup[i] = dh[i] * silu;
    dgate[i] = dh[i] * up[i] * fmaf(silu, 1.0f - s, s);
  }
}
/// One warp a row: element i goes to lane i mod 32, which is an even or an odd vector of 16 of
/// kernels/cpu/softmax_row.h.
__global__ void softmax_rows(const float* x, std::int64_t rows, std::int64_t n, const int* targets, double* losses,
                             float* lse) {
  const std::int64_t r = thread() / 32;
  const int lane = threadIdx.x % 32;
  if (r >= rows) return;
  const float* row = x + r * n;
  float top = -INFINITY, sum = 0;
  for (std::int64_t i = lane; i < n; i += 32) top = row[i] > top ? row[i] : top;
  for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  for (std::int64_t i = lane; i < n; i += 32) sum += exact_exp(row[i] - top);
  for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (lane == 0) {
    const double log_sum = log(double(sum));
    lse[r] = float(log_sum + top);
    losses[r] = targets[r] < 0 ? 0.0 : log_sum + top - row[targets[r]];
  }
}
__global__ void softmax_rows_grad(const float* x, std::int64_t rows, std::int64_t n, const int* targets,
                                  const float* lse, float scale, float* dx) {
  FOR_EACH(i, rows * n) {
    const std::int64_t r = i / n, c = i % n;
    const float v = exact_exp(x[i] - lse[r]) * (targets[r] < 0 ? 0.0f : scale);
    dx[i] = targets[r] >= 0 && c == targets[r] ? v - scale : v;
  }
}

constexpr int blocks = 132 * 8, threads = 256;

/// Compares n elements of a device array with the CPU's; NaNs of both sides count apart.
template <class T>
struct Difference {
  long long differ = 0, nans = 0, first = -1;
  void add(const T* device, const std::vector<T>& want, std::int64_t n, std::int64_t offset = 0) {
    static T* got = nullptr;
    static std::int64_t size = 0;
    if (size < n) {
      if (got) CUDA(cudaFreeHost(got));
      got = pinned<T>(static_cast<std::size_t>(n));
      size = n;
    }
    CUDA(cudaMemcpy(got, device, static_cast<std::size_t>(n) * sizeof(T), cudaMemcpyDeviceToHost));
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    std::vector<std::thread> all;
    std::mutex mutex;
    for (int k = 0; k < cores; ++k)
      all.emplace_back([&, k] {
        Difference mine;
        const std::int64_t end = n * (k + 1) / cores;
        for (std::int64_t i = n * k / cores; i < end; i += 4096)
          mine.compare(got, want.data(), i, std::min(end, i + 4096), offset);
        const std::lock_guard<std::mutex> lock(mutex);
        differ += mine.differ;
        nans += mine.nans;
        if (mine.first >= 0 && (first < 0 || mine.first < first)) first = mine.first;
      });
    for (auto& t : all) t.join();
  }

 private:
  void compare(const T* got, const T* want, std::int64_t begin, std::int64_t end, std::int64_t offset) {
    if (std::memcmp(got + begin, want + begin, static_cast<std::size_t>(end - begin) * sizeof(T)) == 0) return;
    for (std::int64_t i = begin; i < end; ++i) {
      if (std::memcmp(got + i, want + i, sizeof(T)) == 0) continue;
      bool nan = false;
      if constexpr (std::is_floating_point_v<T>) nan = std::isnan(got[i]) && std::isnan(want[i]);
      ++(nan ? nans : differ);
      if (!nan && first < 0) first = offset + i;
    }
  }
};
template <class T>
void tell(const char* what, const Difference<T>& d, std::int64_t n) {
  fact(text("bits: %s", what), text("%lld of %lld differ (first %lld), %lld more are NaN on both sides with other bits",
                                    d.differ, static_cast<long long>(n), d.first, d.nans));
}
template <class T>
std::vector<T> uninitialised(std::int64_t n) {
  return std::vector<T>(static_cast<std::size_t>(n));
}
template <class T>
T* copy_of(const std::vector<T>& host) {
  T* p = on_device<T>(host.size());
  CUDA(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

template <class T, class Gpu, class Cpu>
void all_bits(const char* what, Gpu&& gpu, Cpu&& on_cpu) {
  constexpr std::int64_t piece = 1 << 27;
  T* device = on_device<T>(piece);
  auto want = uninitialised<T>(piece);
  Difference<T> d;
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += piece) {
    gpu(std::uint32_t(first), piece, device);
    on_cpu(std::uint32_t(first), piece, want.data());
    d.add(device, want, piece, std::int64_t(first));
  }
  tell(what, d, std::int64_t{1} << 32);
  CUDA(cudaFree(device));
}

std::uint64_t state = 88172645463325252ull;
std::uint64_t next() { return state ^= state << 13, state ^= state >> 7, state ^= state << 17; }
/// Values of many magnitudes, some of them denormal.
std::vector<float> random_values(std::int64_t n, int spread) {
  auto v = uninitialised<float>(n);
  for (auto& x : v)
    x = std::ldexp(static_cast<float>(std::int64_t(next() >> 40) - (1 << 23)) * 0x1p-23f,
                   int(next() % std::uint64_t(2 * spread + 1)) - spread);
  return v;
}
/// Any bits at all.
std::vector<float> random_bits(std::int64_t n) {
  auto v = uninitialised<float>(n);
  for (auto& x : v) {
    const auto u = std::uint32_t(next() >> 16);
    std::memcpy(&x, &u, 4);
  }
  return v;
}

}  // namespace

int main(int argc, char**) {
  CUDA(cudaSetDevice(0));
  const bool brief = argc > 1;
  all_bits<float>(
      "polynomial exp, all 2^32 floats", [](auto f, auto n, float* o) { exp_of_bits<<<blocks, threads>>>(f, n, o); },
      cpu::exp_of_bits);
  if (!brief)
    all_bits<float>(
        "library expf against the polynomial, all 2^32 floats",
        [](auto f, auto n, float* o) { library_exp_of_bits<<<blocks, threads>>>(f, n, o); }, cpu::exp_of_bits);
  if (!brief)
    all_bits<float>(
        "sqrtf, all 2^32 floats", [](auto f, auto n, float* o) { sqrt_of_bits<<<blocks, threads>>>(f, n, o); },
        cpu::sqrt_of_bits);
  if (!brief)
    all_bits<std::uint16_t>(
        "float to bf16, all 2^32 floats",
        [](auto f, auto n, std::uint16_t* o) {
          bf16_of_bits<<<blocks, threads>>>(f, n, reinterpret_cast<__nv_bfloat16*>(o));
        },
        cpu::bf16_of_bits);
  {
    constexpr std::int64_t n = 1 << 26;
    const auto a = random_bits(n), b = random_bits(n), c = random_bits(n);
    auto want = uninitialised<float>(n);
    float *da = copy_of(a), *db = copy_of(b), *dc = copy_of(c), *out = on_device<float>(n);
    Difference<float> quotient, sum;
    division<<<blocks, threads>>>(da, db, n, out);
    cpu::division(a.data(), b.data(), n, want.data());
    quotient.add(out, want, n);
    tell("division, random bits", quotient, n);
    fused<<<blocks, threads>>>(da, db, dc, n, out);
    cpu::fused(a.data(), b.data(), c.data(), n, want.data());
    sum.add(out, want, n);
    tell("fmaf, random bits", sum, n);
    for (auto* p : {da, db, dc, out}) CUDA(cudaFree(p));
  }
  {
    constexpr std::int64_t n = (1 << 24) + 5;
    const cpu::AdamWStep h{3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.73, 17};
    auto p = random_values(n, 8), g = random_values(n, 30), m = random_values(n, 30), v = random_values(n, 30);
    for (auto& x : v) x = std::fabs(x);
    float *dp = copy_of(p), *dg = copy_of(g), *dm = copy_of(m), *dv = copy_of(v);
    const double correct1 = 1 - std::pow(double(h.beta1), double(h.step)),
                 correct2 = 1 - std::pow(double(h.beta2), double(h.step));
    const AdamWScalars s{float(1 - double(h.lr) * h.weight_decay),
                         float(-h.lr / correct1),
                         float(1 / std::sqrt(correct2)),
                         float(h.grad_scale),
                         h.eps,
                         h.beta1,
                         float(1 - double(h.beta1)),
                         h.beta2,
                         float(1 - double(h.beta2))};
    Difference<float> dp1, dm1, dv1;
    for (int r = 0; r < 3; ++r) {
      adamw<<<blocks, threads>>>(dp, dg, dm, dv, n, s);
      cpu::adamw(p.data(), g.data(), m.data(), v.data(), n, h);
    }
    dp1.add(dp, p, n);
    dm1.add(dm, m, n);
    dv1.add(dv, v, n);
    tell("AdamW, parameters after 3 steps", dp1, n);
    tell("AdamW, first moment", dm1, n);
    tell("AdamW, second moment", dv1, n);
    auto sums = uninitialised<std::int64_t>(n);
    for (auto& x : sums) x = std::int64_t(next()) >> (next() % 40);
    auto* ds = reinterpret_cast<long long*>(copy_of(sums));
    adamw_sums<<<blocks, threads>>>(dp, ds, std::ldexp(1.0, -40), dm, dv, n, s);
    cpu::adamw_sums(p.data(), sums.data(), 40, m.data(), v.data(), n, h);
    Difference<float> after;
    after.add(dp, p, n);
    tell("AdamW with an exact sum as gradient", after, n);
    // Terms: values below 2^50 units, ties included.
    auto terms = random_values(n, 9);
    for (std::int64_t i = 0; i < n; i += 7)
      terms[std::size_t(i)] = std::ldexp(float(std::int64_t(next() >> 44)) + 0.5f, -40);
    float* dt = copy_of(terms);
    int* peak = on_device<int>(1);
    CUDA(cudaMemset(peak, 0, 4));
    float cpu_peak = -0.0f;
    put_terms<<<blocks, threads>>>(ds, dt, n, std::ldexp(1.0, 40), true, peak);
    put_terms<<<blocks, threads>>>(ds, dt, n, std::ldexp(1.0, 40), true, peak);
    cpu::put_terms(sums.data(), terms.data(), n, 40, true, &cpu_peak);
    cpu::put_terms(sums.data(), terms.data(), n, 40, true, &cpu_peak);
    Difference<std::int64_t> exact;
    exact.add(reinterpret_cast<std::int64_t*>(ds), sums, n);
    tell("exact sums of terms", exact, n);
    float gpu_peak = 0;
    CUDA(cudaMemcpy(&gpu_peak, peak, 4, cudaMemcpyDeviceToHost));
    fact("bits: peak of terms", gpu_peak == cpu_peak ? "the same" : "differs");
    round_sums<<<blocks, threads>>>(dt, ds, n, std::ldexp(1.0, -40));
    cpu::round_sums(terms.data(), sums.data(), n, 40);
    Difference<float> rounded;
    rounded.add(dt, terms, n);
    tell("exact sums rounded to float", rounded, n);
    for (auto* x : {dp, dg, dm, dv, dt}) CUDA(cudaFree(x));
    CUDA(cudaFree(ds));
  }
  {
    constexpr std::int64_t rows = 4096, cols = 2048 + 37;
    const auto x = random_values(rows * cols, 20);
    float* dx = copy_of(x);
    auto want = uninitialised<double>(rows);
    double* sums = on_device<double>(rows);
    square_sums<<<rows * 8 / threads, threads>>>(dx, rows, cols, sums);
    cpu::square_sums(x.data(), rows, cols, want.data());
    Difference<double> d;
    d.add(sums, want, rows);
    tell("square sums in double", d, rows);
    CUDA(cudaFree(dx));
  }
  {
    constexpr std::int64_t n = 1 << 26;
    auto words = uninitialised<std::uint32_t>(n);
    std::uint32_t* dw = on_device<std::uint32_t>(n);
    philox_words<<<blocks, threads>>>(0x123456789ABCDEFull, 0xFFFFFFF0ull, 0x77700000000ull, n / 4,
                                      reinterpret_cast<uint4*>(dw));
    cpu::philox_words(0x123456789ABCDEFull, 0xFFFFFFF0ull, 0x77700000000ull, n / 4, words.data());
    Difference<std::uint32_t> d;
    d.add(dw, words, n);
    tell("Philox words", d, n);
    const auto x = random_bits(n);
    auto y = uninitialised<float>(n);
    float *dx = copy_of(x), *dy = on_device<float>(n);
    const double p = 0.1;
    dropout<<<blocks, threads>>>(reinterpret_cast<float4*>(dx), reinterpret_cast<float4*>(dy), n / 4,
                                 int(std::ceil(p * 0x1p24)), float(1.0 / (1.0 - p)), 99, std::uint64_t{5} << 32 ^ 77);
    cpu::dropout(x.data(), y.data(), n, p, 99, std::uint64_t{5} << 32 ^ 77);
    Difference<float> e;
    e.add(dy, y, n);
    tell("dropout", e, n);
    Difference<float> f;
    constexpr int pieces = 4;
    for (int k = 0; k < pieces; ++k) {
      normals<<<blocks, threads>>>(std::uint64_t(1000 + k), 0.02f, n / 2, reinterpret_cast<float2*>(dy));
      cpu::normals(std::uint64_t(1000 + k), 0.02f, n, y.data());
      f.add(dy, y, n);
    }
    tell("initial values (double log, sin and cos of the libraries)", f, n * pieces);
    for (auto* q : {dx, dy}) CUDA(cudaFree(q));
  }
  {
    constexpr std::int64_t rows = 8192, cols = 2048, n = rows * cols;
    const auto x = random_values(n, 3), w = random_values(cols, 1), up = random_values(n, 3), dh = random_values(n, 6);
    float *dx = copy_of(x), *dw = copy_of(w), *du = copy_of(up), *dd = copy_of(dh), *y = on_device<float>(n),
          *z = on_device<float>(n), *rstd = on_device<float>(rows);
    auto want = uninitialised<float>(n), other = uninitialised<float>(n), r = uninitialised<float>(rows);
    rmsnorm<<<rows * 32 / threads, threads>>>(dx, dw, y, rstd, rows, cols, 1e-5f);
    cpu::rmsnorm(x.data(), w.data(), want.data(), r.data(), rows, cols, 1e-5f);
    Difference<float> a, b, c, d, e;
    a.add(y, want, n);
    tell("RMSNorm in f32, one warp a row", a, n);
    swiglu<<<blocks, threads>>>(dx, du, y, n);
    cpu::swiglu(x.data(), up.data(), want.data(), n);
    b.add(y, want, n);
    tell("SwiGLU in f32", b, n);
    swiglu_grad<<<blocks, threads>>>(dd, dx, du, y, z, n);
    cpu::swiglu_grad(dh.data(), x.data(), up.data(), want.data(), other.data(), n);
    c.add(y, want, n);
    d.add(z, other, n);
    tell("SwiGLU gradient of the gate", c, n);
    tell("SwiGLU gradient of up", d, n);
    constexpr std::int64_t vocabulary = 50304, lines = 512;
    const auto logits = random_values(lines * vocabulary, 2);
    std::vector<std::int32_t> targets(lines);
    for (auto& t : targets) t = std::int32_t(next() % vocabulary);
    float *dl = copy_of(logits), *lse = on_device<float>(lines), *g = on_device<float>(lines * vocabulary);
    double* losses = on_device<double>(lines);
    const std::int32_t* dt = copy_of(targets);
    auto want_loss = uninitialised<double>(lines);
    auto want_lse = uninitialised<float>(lines), want_grad = uninitialised<float>(lines * vocabulary);
    softmax_rows<<<lines * 32 / threads, threads>>>(dl, lines, vocabulary, dt, losses, lse);
    cpu::softmax_rows(logits.data(), lines, vocabulary, targets.data(), want_loss.data(), want_lse.data());
    Difference<double> l;
    l.add(losses, want_loss, lines);
    tell("cross-entropy: losses (double log of the libraries)", l, lines);
    e.add(lse, want_lse, lines);
    tell("cross-entropy: log of the sum, as float", e, lines);
    CUDA(cudaMemcpy(lse, want_lse.data(), lines * 4, cudaMemcpyHostToDevice));
    softmax_rows_grad<<<blocks, threads>>>(dl, lines, vocabulary, dt, lse, 1.0f / 512, g);
    cpu::softmax_rows_grad(logits.data(), lines, vocabulary, targets.data(), want_lse.data(), 1.0f / 512,
                           want_grad.data());
    Difference<float> sg;
    sg.add(g, want_grad, lines * vocabulary);
    tell("cross-entropy: gradient", sg, lines * vocabulary);
  }
  CUDA(cudaDeviceSynchronize());
}
