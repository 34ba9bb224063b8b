// AdamW: as an update calls it, and the op adamw, whose rate and number lie in device memory.
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/exact_math.h"

namespace troupe::kernels::cuda {

namespace {

/// What all elements of an update share.
struct Factors {
  float decay, rate, root, scale, eps, keep1, add1, keep2, add2;
};

TROUPE_EXACT double correction(float beta, std::int64_t step) {
  return 1 - exact::pow(static_cast<double>(beta), static_cast<double>(step));
}
TROUPE_EXACT Factors factors_of(const AdamW& a, double correct1, double correct2) {
  return {static_cast<float>(1 - static_cast<double>(a.lr) * a.weight_decay),
          static_cast<float>(-a.lr / correct1),
          static_cast<float>(1 / std::sqrt(correct2)),
          static_cast<float>(a.grad_scale),
          a.eps,
          a.beta1,
          static_cast<float>(1 - static_cast<double>(a.beta1)),
          a.beta2,
          static_cast<float>(1 - static_cast<double>(a.beta2))};
}

struct GivenFactors {
  Factors factors;
  TROUPE_DEVICE Factors operator()() const { return factors; }
};
/// Each block makes them once. All of its threads call it.
struct ReadFactors {
  AdamW hyper;
  const float *lr, *number;
  TROUPE_DEVICE Factors operator()() const {
    Factors& made = shared<Factors>();
    if (thread_x() < warp_size) {
      AdamW a = hyper;
      a.lr = *lr;
      a.step = static_cast<std::int64_t>(*number);
      const double mine = correction(thread_x() % 2 == 0 ? a.beta1 : a.beta2, a.step);
      const double first = shuffle(mine, 0), second = shuffle(mine, 1);
      if (thread_x() == 0) made = factors_of(a, first, second);
    }
    sync_block();
    return made;
  }
};

template <class G, class Source>
TROUPE_KERNEL void TROUPE_THREADS(vector_threads)
    update(AdamWState from, AdamWState to, G gradient, Items items, Source source) {
  const Factors f = source();
  for_items(items, [&](std::int64_t i, auto count) {
    constexpr int n = decltype(count)::value;
    float g[n], p[n], m[n], v[n];
    load(from.p + i, p);
    load(from.m + i, m);
    load(from.v + i, v);
    gradient.get(i, g);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float x = g[k] * f.scale;
      m[k] = fmaf(x, f.add1, m[k] * f.keep1);
      v[k] = fmaf(x * x, f.add2, v[k] * f.keep2);
      p[k] = fmaf(m[k] / fmaf(sqrtf(v[k]), f.root, f.eps), f.rate, p[k] * f.decay);
    }
    store(to.p + i, p);
    store(to.m + i, m);
    store(to.v + i, v);
  });
}

template <class Source>
void issue(const AdamWState& from, const AdamWState& to, const Gradient& g, std::int64_t n, const Source& source,
           void* queue) {
  bool aligned = sixteen_bytes_at(g);
  for (const float* p : {from.p, from.m, from.v, to.p, to.m, to.v}) aligned = aligned && sixteen_bytes_at(p);
  const Items items = items_of(n, aligned);
  Grid grid = vector_grid(items.count());
  grid.shared_bytes = sizeof(Factors);
  with_gradient(g, [&](const auto& gradient) {
    launch(queue, grid, update<std::decay_t<decltype(gradient)>, Source>, from, to, gradient, items, source);
  });
}

}  // namespace

void adamw(const Call& call) {
  AdamW hyper;
  hyper.beta1 = static_cast<float>(call.attrs->real("beta1", hyper.beta1));
  hyper.beta2 = static_cast<float>(call.attrs->real("beta2", hyper.beta2));
  hyper.eps = static_cast<float>(call.attrs->real("eps", hyper.eps));
  hyper.weight_decay = static_cast<float>(call.attrs->real("weight_decay", hyper.weight_decay));
  const AdamWState from{call.in[0].as<float>(), call.in[1].as<float>(), call.in[2].as<float>()},
      to{call.out[0].as<float>(), call.out[1].as<float>(), call.out[2].as<float>()};
  issue(from, to, {.sums = {}, .rounded = call.in[3].as<float>()}, call.in[0].size(),
        ReadFactors{hyper, call.in[4].as<float>(), call.in[5].as<float>()}, call.queue);
}

void adamw_update(const AdamWState& from, const AdamWState& to, const Gradient& g, std::int64_t n, const AdamW& a,
                  void* queue) {
  issue(from, to, g, n, GivenFactors{factors_of(a, correction(a.beta1, a.step), correction(a.beta2, a.step))}, queue);
}

}  // namespace troupe::kernels::cuda
