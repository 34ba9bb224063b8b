#include "kernels/optimizer.h"

#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/gradient.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"
#include "kernels/exact_math.h"

namespace troupe::kernels {

using namespace simd;

void adamw_update(const AdamWState& from, const AdamWState& to, const Gradient& g, std::int64_t n, const AdamW& a,
                  Parallel& par) {
  // Scalars in double, as PyTorch's single-tensor path computes them.
  const double step = static_cast<double>(a.step);
  const double correct1 = 1 - exact::pow(static_cast<double>(a.beta1), step);
  const double correct2 = 1 - exact::pow(static_cast<double>(a.beta2), step);
  const v16 decay = splat(static_cast<float>(1 - static_cast<double>(a.lr) * a.weight_decay));
  const v16 rate = splat(static_cast<float>(-a.lr / correct1)),
            root = splat(static_cast<float>(1 / std::sqrt(correct2)));
  const v16 scale = splat(static_cast<float>(a.grad_scale)), eps = splat(a.eps);
  const v16 keep1 = splat(a.beta1), add1 = splat(static_cast<float>(1 - static_cast<double>(a.beta1)));
  const v16 keep2 = splat(a.beta2), add2 = splat(static_cast<float>(1 - static_cast<double>(a.beta2)));
  const auto update = [=](v16 grad, v16 & pi, v16 & mi, v16 & vi) __attribute__((always_inline)) {
    const v16 x = grad * scale;
    mi = fma(x, add1, mi * keep1);
    vi = fma(x * x, add2, vi * keep2);
    pi = fma(mi / fma(sqrt(vi), root, eps), rate, pi * decay);
  };
  // Whole vectors from i on; `keep` stores them. Returns where they end.
  const auto update_vectors = [=](std::int64_t i, std::int64_t end, const float* grads, auto keep)
      __attribute__((always_inline)) {
    for (; i + width <= end; i += width, grads += width) {
      v16 pi = load(from.p + i), mi = load(from.m + i), vi = load(from.v + i);
      update(load(grads), pi, mi, vi);
      keep(to.p + i, pi);
      keep(to.m + i, mi);
      keep(to.v + i, vi);
    }
    return i;
  };
  const auto stored = [](float* p, v16 v) __attribute__((always_inline)) { store(p, v); };
  const auto streamed = [](float* p, v16 v) __attribute__((always_inline)) { stream(p, v); };
  const auto update_all = [=](std::int64_t begin, std::int64_t end, const float* grads) {
    std::int64_t i = begin;
    // Where the new state is written elsewhere, an ordinary store would read each line only to overwrite it. Little of
    // it would be in the caches still when an act reads it.
    if (from.m != to.m && streams_to(to.p + i) && streams_to(to.m + i) && streams_to(to.v + i)) {
      i = update_vectors(i, end, grads, streamed);
      end_of_streams();  // before a version word says that the state lies there
    } else {
      i = update_vectors(i, end, grads, stored);
    }
    grads += i - begin;
    if (const std::int64_t w = end - i; w > 0) {
      v16 pi = load_tail(from.p + i, w), mi = load_tail(from.m + i, w), vi = load_tail(from.v + i, w);
      update(load_tail(grads, w), pi, mi, vi);
      store_tail(to.p + i, pi, w);
      store_tail(to.m + i, mi, w);
      store_tail(to.v + i, vi, w);
    }
  };
  for_blocks(par, n, element_block,
             [&](std::int64_t begin, std::int64_t end) { for_pieces(g, begin, end, update_all); });
}

void cpu::adamw(const Call& call) {
  AdamW hyper;
  hyper.beta1 = static_cast<float>(call.attrs->real("beta1", hyper.beta1));
  hyper.beta2 = static_cast<float>(call.attrs->real("beta2", hyper.beta2));
  hyper.eps = static_cast<float>(call.attrs->real("eps", hyper.eps));
  hyper.weight_decay = static_cast<float>(call.attrs->real("weight_decay", hyper.weight_decay));
  hyper.lr = *call.in[4].as<float>();
  hyper.step = static_cast<std::int64_t>(*call.in[5].as<float>());
  const AdamWState from{call.in[0].as<float>(), call.in[1].as<float>(), call.in[2].as<float>()},
      to{call.out[0].as<float>(), call.out[1].as<float>(), call.out[2].as<float>()};
  adamw_update(from, to, {.rounded = call.in[3].as<float>()}, call.in[0].size(), hyper, *call.par);
}

}  // namespace troupe::kernels
