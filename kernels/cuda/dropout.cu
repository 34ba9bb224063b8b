// Dropout. A thread has the (at most four) elements of a run that draw the words of one counter.
#include "devices/base/philox.h"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/extents.cuh"
#include "kernels/cuda/vector.cuh"

namespace troupe::kernels::cuda {

namespace {

/// The numbers of a call.
struct Draw {
  std::uint64_t key, step;
  std::int64_t first_sample;
  std::int32_t threshold;
  float scale;
  /// Words are compared as 24-bit numbers, which fit a signed word.
  TROUPE_DEVICE float operator()(float x, std::uint32_t word) const {
    const float kept = x * scale;
    return static_cast<std::int32_t>(word >> 8) >= threshold ? kept : 0.0f;
  }
};

/// Runs of `sample` (where the part of a sample lies in the sample), each of at most `counters` counters.
TROUPE_KERNEL void TROUPE_THREADS(vector_threads) drop(const float* x, float* y, std::int64_t samples, Walk sample,
                                                       std::int64_t runs, std::int64_t counters, Draw draw) {
  const std::int64_t length = sample.size[0];
  for_mine(samples * runs * counters, [&](std::int64_t i) {
    const Quotient of_all = divide(i, counters), of_sample = divide(of_all.whole, runs);
    const std::int64_t begin = run_in_a(sample, of_sample.rest), end = begin + length;
    const std::int64_t counter = begin / 4 + of_all.rest, e = counter * 4;
    if (e >= end) return;
    const auto number = static_cast<std::uint64_t>(draw.first_sample + of_sample.whole);
    const Philox4 words = philox(draw.key, static_cast<std::uint64_t>(counter), draw.step << 32 ^ number);
    // element e of the sample, which may lie before the run
    const std::int64_t at = of_all.whole * length + (e - begin);
    const float* from = x + at;
    float* to = y + at;
    const bool aligned = (reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) % 16 == 0;
    if (aligned && e >= begin && e + 4 <= end) {
      float v[4];
      load(from, v);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = draw(v[k], words[static_cast<std::size_t>(k)]);
      store(to, v);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (e + k >= begin && e + k < end) to[k] = draw(from[k], words[static_cast<std::size_t>(k)]);
    }
  });
}

}  // namespace

void dropout(const Call& call) {
  const View& in = call.in[0];
  if (in.size() == 0) return;
  const double p = call.attrs->real("p");
  // The part of one sample, in the logical sample.
  Extent part;
  Shape whole;
  for (std::size_t d = 1; d < in.shape.size(); ++d) {
    part.dims.push_back(in.extent.dims[d]);
    whole.push_back(in.logical[d]);
  }
  const std::int64_t samples = in.shape.empty() ? 1 : in.shape[0];
  const std::int64_t first = call.first_sample + (in.shape.empty() ? 0 : in.extent.dims[0].lo);
  const Draw draw{call.rng_key, static_cast<std::uint64_t>(call.step), first,
                  static_cast<std::int32_t>(std::ceil(p * 0x1p24)),  // keeps to_unit(word) >= p
                  static_cast<float>(1.0 / (1.0 - p))};
  const Walk sample = walk(part, whole);
  const std::int64_t runs = sample.runs(), counters = (sample.size[0] + 6) / 4;
  launch(call.queue, vector_grid(samples * runs * counters), drop, in.as<float>(), call.out[0].as<float>(), samples,
         sample, runs, counters, draw);
}

}  // namespace troupe::kernels::cuda
