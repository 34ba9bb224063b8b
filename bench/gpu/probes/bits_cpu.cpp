// The CPU's side of bits.cu: the project's kernels, on all cores.
#include <numbers>
#include <thread>
#include <vector>

#include "bits.h"
#include "devices/base/philox.h"
#include "kernels/cpu/gradient.h"
#include "kernels/cpu/philox_block.h"
#include "kernels/cpu/softmax_row.h"
#include "kernels/cpu/term_store.h"
#include "kernels/optimizer.h"
#include "kernels/square_sums.h"

namespace troupe {
void check_failed(const char*, const char*, const char*, int, const std::string&) { std::abort(); }
namespace detail {
std::string operands_text(const char*, const std::string*, int) { return {}; }
}  // namespace detail
}  // namespace troupe

namespace cpu {
namespace {

using namespace troupe::kernels;
using namespace troupe::kernels::simd;

/// All cores, each an equal part of the blocks.
class Threads : public troupe::Parallel {
 public:
  int threads() const override { return static_cast<int>(std::thread::hardware_concurrency()); }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    std::vector<std::thread> all;
    for (int k = 0; k < threads(); ++k)
      all.emplace_back([&, k] {
        for (std::int64_t i = n * k / threads(); i < n * (k + 1) / threads(); ++i) body(i);
      });
    for (auto& t : all) t.join();
  }
};
Threads cores;

template <class F>
void in_blocks(std::int64_t n, F&& body) {
  for_blocks(cores, n, 1 << 16, body);
}
/// f of the vector of bits first + i, first + i + 1, ..
template <class F>
void of_bits(std::uint32_t first, std::int64_t n, float* out, F&& f) {
  in_blocks(n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += width) {
      i16 bits;
      for (int k = 0; k < width; ++k) bits[k] = static_cast<std::int32_t>(first + static_cast<std::uint32_t>(i + k));
      store(out + i, f((v16)bits));
    }
  });
}
AdamW of(const AdamWStep& h) {
  return {.lr = h.lr,
          .beta1 = h.beta1,
          .beta2 = h.beta2,
          .eps = h.eps,
          .weight_decay = h.weight_decay,
          .grad_scale = h.grad_scale,
          .step = h.step};
}

}  // namespace

void exp_of_bits(std::uint32_t first, std::int64_t n, float* out) {
  of_bits(first, n, out, [](v16 x) { return exp(x); });
}
void sqrt_of_bits(std::uint32_t first, std::int64_t n, float* out) {
  of_bits(first, n, out, [](v16 x) { return sqrt(x); });
}
void bf16_of_bits(std::uint32_t first, std::int64_t n, std::uint16_t* out) {
  in_blocks(n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint32_t u = first + static_cast<std::uint32_t>(i);
      const bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
      out[i] = nan ? 0x7FFF : static_cast<std::uint16_t>((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
    }
  });
}
void division(const float* a, const float* b, std::int64_t n, float* out) {
  in_blocks(n, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) out[i] = a[i] / b[i];
  });
}
void fused(const float* a, const float* b, const float* c, std::int64_t n, float* out) {
  in_blocks(n, [&](std::int64_t begin, std::int64_t end) {
    map(
        end - begin, out + begin, [](v16 x, v16 y, v16 z) { return fma(x, y, z); }, a + begin, b + begin, c + begin);
  });
}
void adamw(float* p, const float* g, float* m, float* v, std::int64_t n, const AdamWStep& h) {
  adamw_update(p, {.sums = {}, .exponent = 0, .rounded = g}, m, v, n, of(h), cores);
}
void adamw_sums(float* p, const std::int64_t* g, std::int32_t exponent, float* m, float* v, std::int64_t n,
                const AdamWStep& h) {
  const std::int64_t* uses[] = {g};
  adamw_update(p, {.sums = uses, .exponent = exponent}, m, v, n, of(h), cores);
}
void square_sums(const float* x, std::int64_t rows, std::int64_t cols, double* sums) {
  row_square_sums({.sums = {}, .exponent = 0, .rounded = x}, rows, cols, sums, cores);
}
void put_terms(std::int64_t* sums, const float* terms, std::int64_t n, std::int32_t exponent, bool accumulate,
               float* peak) {
  troupe::kernels::put_terms(Terms{.sums = sums, .exponent = exponent, .accumulate = accumulate, .peak = peak, .ld = n},
                             terms, n, cores);
}
void round_sums(float* out, const std::int64_t* sums, std::int64_t n, std::int32_t exponent) {
  const std::int64_t* uses[] = {sums};
  in_blocks(n, [&](std::int64_t begin, std::int64_t end) {
    round_piece(out + begin, {.sums = uses, .exponent = exponent}, begin, end - begin);
  });
}
void philox_words(std::uint64_t key, std::uint64_t first, std::uint64_t hi, std::int64_t counters,
                  std::uint32_t* words) {
  in_blocks(counters, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto w = troupe::philox(key, first + static_cast<std::uint64_t>(i), hi);
      std::memcpy(words + 4 * i, w.data(), sizeof w);
    }
  });
}
void dropout(const float* x, float* y, std::int64_t n, double p, std::uint64_t key, std::uint64_t hi) {
  const auto threshold = static_cast<std::int32_t>(std::ceil(p * 0x1p24));
  const float scale = static_cast<float>(1.0 / (1.0 - p));
  in_blocks(n, [&](std::int64_t begin, std::int64_t end) {
    for_words(key, hi, begin, end - begin, [&](const std::uint32_t* words, std::int64_t i, std::int64_t count) {
      for (std::int64_t k = 0; k < count; ++k) {
        const float kept = x[begin + i + k] * scale;
        y[begin + i + k] = static_cast<std::int32_t>(words[k] >> 8) >= threshold ? kept : 0.0f;
      }
    });
  });
}
void normals(std::uint64_t key, float std, std::int64_t n, float* out) {  // as kernels/cpu/initial.cpp
  in_blocks(n / 2, [&](std::int64_t begin, std::int64_t end) {
    for (auto j = begin; j < end; ++j) {
      const auto w = troupe::philox(key, static_cast<std::uint64_t>(j / 2), 0);
      const std::uint32_t a = w[static_cast<std::size_t>(j % 2 * 2)], b = w[static_cast<std::size_t>(j % 2 * 2 + 1)];
      const double u = (static_cast<double>(a) + 1) * 0x1p-32,
                   angle = 2 * std::numbers::pi * static_cast<double>(b) * 0x1p-32;
      const double root = std::sqrt(-2 * std::log(u));
      out[2 * j] = static_cast<float>(std * (root * std::cos(angle)));
      out[2 * j + 1] = static_cast<float>(std * (root * std::sin(angle)));
    }
  });
}
void rmsnorm(const float* xs, const float* w, float* y, float* rstds, std::int64_t rows, std::int64_t C,
             float eps) {  // as kernels/cpu/rmsnorm.cpp
  for_blocks(cores, rows, 32, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const float* x = xs + r * C;
      const float mean = reduce(
                             C, [](v16 a) { return a * a; }, x) /
                         static_cast<float>(C);
      const float rstd = 1.0f / std::sqrt(mean + eps);
      const v16 s = splat(rstd);
      map(
          C, y + r * C, [s](v16 a, v16 g) { return a * s * g; }, x, w);
      rstds[r] = rstd;
    }
  });
}
void swiglu(const float* gate, const float* up, float* h, std::int64_t n) {
  in_blocks(n, [&](std::int64_t b, std::int64_t end) {
    map(
        end - b, h + b, [](v16 g, v16 u) { return g * sigmoid(g) * u; }, gate + b, up + b);
  });
}
void swiglu_grad(const float* dh, const float* gate, const float* up, float* dgate, float* dup, std::int64_t n) {
  in_blocks(n, [&](std::int64_t b, std::int64_t end) {
    map(
        end - b, dup + b, [](v16 d, v16 g) { return d * (g * sigmoid(g)); }, dh + b, gate + b);
    map(
        end - b, dgate + b,
        [](v16 d, v16 g, v16 u) {
          const v16 s = sigmoid(g), silu = g * s;
          return d * u * fma(silu, 1.0f - s, s);
        },
        dh + b, gate + b, up + b);
  });
}
void softmax_rows(const float* x, std::int64_t rows, std::int64_t n, const std::int32_t* targets, double* losses,
                  float* lse) {
  for_blocks(cores, rows, 8, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) losses[r] = softmax_row(x + r * n, n, targets[r], lse + r);
  });
}
void softmax_rows_grad(const float* x, std::int64_t rows, std::int64_t n, const std::int32_t* targets, const float* lse,
                       float scale, float* dx) {
  for_blocks(cores, rows, 8, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) softmax_row_grad(x + r * n, n, targets[r], lse[r], scale, dx + r * n);
  });
}

}  // namespace cpu
