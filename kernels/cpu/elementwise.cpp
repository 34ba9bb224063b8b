// add, weighted_sum, running_average, multiply, scale, relu, swiglu, delay and its kin: one formula per element.
#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace troupe::kernels::cpu {

using namespace simd;

void add(const Call& call) {
  const float *a = call.in[0].as<float>(), *b = call.in[1].as<float>();
  float* c = call.out[0].as<float>();
  for_blocks(*call.par, call.out[0].size(), element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, c + i, [](v16 x, v16 y) { return x + y; }, a + i, b + i);
  });
}

namespace {

/// Output 0 = A input 0 + B input 1.
void add_weighted(const Call& call, double A, double B) {
  const float *a = call.in[0].as<float>(), *b = call.in[1].as<float>();
  float* c = call.out[0].as<float>();
  const v16 of_a = splat(static_cast<float>(A)), of_b = splat(static_cast<float>(B));
  for_blocks(*call.par, call.out[0].size(), element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, c + i, [=](v16 x, v16 y) { return x * of_a + y * of_b; }, a + i, b + i);
  });
}

}  // namespace

void weighted_sum(const Call& call) { add_weighted(call, call.attrs->real("a", 1), call.attrs->real("b", 1)); }

void running_average(const Call& call) {
  const double decay = *call.in[2].as<float>() <= 1 ? 0 : call.attrs->real("decay");
  add_weighted(call, decay, 1 - decay);
}

namespace {

/// Copies `bytes` bytes, or clears them where there is nothing to copy.
void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes, Parallel& par) {
  constexpr std::int64_t block = element_block * 4;
  for_blocks(par, bytes, block, [=](std::int64_t i, std::int64_t end) {
    const auto count = static_cast<std::size_t>(end - i);
    from ? std::memcpy(to + i, from + i, count) : std::memset(to + i, 0, count);
  });
}

}  // namespace

void delay(const Call& call) { copy_bytes(call.out[0].data, call.in[0].data, call.out[0].bytes(), *call.par); }

void keep_microbatch(const Call& call) {
  const View &x = call.in[0], &all = call.out[0];
  copy_bytes(microbatch_of(all, call.microbatch), x.data, x.bytes(), *call.par);
}

void kept_microbatch(const Call& call) {
  const View &all = call.in[0], &y = call.out[0];
  copy_bytes(y.data, microbatch_of(all, call.microbatch), y.bytes(), *call.par);
}

void scale(const Call& call) {
  const float* x = call.in[0].as<float>();
  float* y = call.out[0].as<float>();
  const v16 by = splat(*call.in[1].as<float>());
  for_blocks(*call.par, call.out[0].size(), element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, y + i, [=](v16 v) { return v * by; }, x + i);
  });
}

void multiply(const Call& call) {
  const float *a = call.in[0].as<float>(), *b = call.in[1].as<float>();
  float* c = call.out[0].as<float>();
  for_blocks(*call.par, call.out[0].size(), element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, c + i, [](v16 x, v16 y) { return x * y; }, a + i, b + i);
  });
}

void relu(const Call& call) {
  const float* x = call.in[0].as<float>();
  float* y = call.out[0].as<float>();
  for_blocks(*call.par, call.out[0].size(), element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, y + i, [](v16 v) { return v < 0.0f ? v16{} : v; }, x + i);  // keeps NaN visible
  });
}

void relu_grad(const Call& call) {
  const float *dy = call.in[0].as<float>(), *y = call.in[1].as<float>();
  float* dx = call.out[0].as<float>();
  for_blocks(*call.par, call.out[0].size(), element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, dx + i, [](v16 d, v16 v) { return v > 0.0f ? d : v16{}; }, dy + i, y + i);
  });
}

void swiglu(const Call& call) {  // h = gate * sigmoid(gate) * up
  const float *gate = call.in[0].as<float>(), *up = call.in[1].as<float>();
  float* h = call.out[0].as<float>();
  for_blocks(*call.par, call.out[0].size(), element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, h + i, [](v16 g, v16 u) { return g * sigmoid(g) * u; }, gate + i, up + i);
  });
}

void swiglu_grad(const Call& call) {  // d silu(g) = s + g s (1 - s)
  const float *dh = call.in[0].as<float>(), *gate = call.in[1].as<float>(), *up = call.in[2].as<float>();
  float *dgate = call.out[0].as<float>(), *dup = call.out[1].as<float>();
  const auto both = [](v16 d, v16 g, v16 u, v16& dg, v16& du) {
    const v16 s = sigmoid(g), silu = g * s;
    du = d * silu;
    dg = d * u * fma(silu, 1.0f - s, s);
  };
  for_blocks(*call.par, call.out[0].size(), element_block, [=](std::int64_t begin, std::int64_t end) {
    chunks(end - begin, [&](std::int64_t c, std::int64_t n) {
      const auto i = begin + c;
      v16 dg, du;
      if (n == width) {
        both(load(dh + i), load(gate + i), load(up + i), dg, du);
        store(dgate + i, dg);
        store(dup + i, du);
      } else {
        both(load_tail(dh + i, n), load_tail(gate + i, n), load_tail(up + i, n), dg, du);
        store_tail(dgate + i, dg, n);
        store_tail(dup + i, du, n);
      }
    });
  });
}

}  // namespace troupe::kernels::cpu
