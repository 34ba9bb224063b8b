// Initial values of parameters. Each thread makes the pair of normals that its element is of: it happens once in a run.
#include <numbers>

#include "devices/base/philox.h"
#include "kernels/cuda/extents.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/exact_math.h"

namespace troupe::kernels::cuda {

namespace {

TROUPE_KERNEL void TROUPE_THREADS(vector_threads)
    fill_normal(float* out, std::int64_t n, Walk walk, std::uint64_t key, double std) {
  for_mine(n, [&](std::int64_t i) {
    const std::int64_t e = place_in_a(walk, i);
    const Philox4 words = philox(key, static_cast<std::uint64_t>(e / 4), 0);
    // Words 2j and 2j + 1 of a counter make its normals 2j and 2j + 1 (Box and Muller, 1958).
    const bool later = e / 2 % 2 != 0;
    const std::uint32_t first = later ? words[2] : words[0], second = later ? words[3] : words[1];
    const double u = (static_cast<double>(first) + 1) * 0x1p-32;  // (0, 1]
    const double angle = 2 * std::numbers::pi * static_cast<double>(second) * 0x1p-32;
    const double root = std::sqrt(-2 * exact::log(u));
    double sine, cosine;
    exact::sin_cos(angle, sine, cosine);
    out[i] = static_cast<float>(std * (root * (e % 2 != 0 ? sine : cosine)));
  });
}

TROUPE_KERNEL void TROUPE_THREADS(vector_threads) fill(float* out, Items items, float value) {
  for_items(items, [&](std::int64_t i, auto count) {
    float v[decltype(count)::value];
    for (float& x : v) x = value;
    store(out + i, v);
  });
}

}  // namespace

void init_normal(const View& view, std::uint64_t key, float std, void* queue) {
  const std::int64_t n = view.size();
  launch(queue, vector_grid(n), fill_normal, view.as<float>(), n, walk(view.extent, view.logical), key,
         static_cast<double>(std));
}

void init_constant(const View& view, float value, void* queue) {
  float* out = view.as<float>();
  const Items items = items_of(view.size(), sixteen_bytes_at(out));
  launch(queue, vector_grid(items.count()), fill, out, items, value);
}

}  // namespace troupe::kernels::cuda
