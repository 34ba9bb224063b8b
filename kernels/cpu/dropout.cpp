// Dropout: whether an element is kept is a pure function of (key, step, global sample, element of the
// sample's logical shape), so that every layout drops the same ones.
#include <cmath>
#include <cstdint>

#include "devices/base/philox.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/philox_block.h"

namespace troupe::kernels::cpu {

void dropout(const Call& call) {
  const View& in = call.in[0];
  if (in.size() == 0) return;
  const double p = call.attrs->real("p");
  const auto threshold = static_cast<std::int32_t>(std::ceil(p * 0x1p24));  // keeps to_unit(word) >= p
  const float scale = static_cast<float>(1.0 / (1.0 - p));
  const float* x = in.as<float>();
  float* y = call.out[0].as<float>();

  // The part of one sample, and where its runs lie in the logical sample.
  Extent part, whole;
  for (std::size_t d = 1; d < in.shape.size(); ++d) {
    part.dims.push_back(in.extent.dims[d]);
    whole.dims.push_back({0, in.logical[d]});
  }
  const std::int64_t samples = in.shape.empty() ? 1 : in.shape[0], per_sample = in.size() / samples;
  const std::int64_t first = call.first_sample + (in.shape.empty() ? 0 : in.extent.dims[0].lo);

  par_runs(*call.par, samples, part, whole, [&](std::int64_t sample, Run run) {
    const auto hi = static_cast<std::uint64_t>(call.step) << 32 ^ static_cast<std::uint64_t>(first + sample);
    const float* from = x + sample * per_sample + run.local;
    float* to = y + sample * per_sample + run.local;
    for_words(call.rng_key, hi, run.global, run.count, [&](const std::uint32_t* words, std::int64_t i, std::int64_t n) {
      // Compared as 24-bit numbers, which fit a signed word.
      for (std::int64_t k = 0; k < n; ++k) {
        const float kept = from[i + k] * scale;
        to[i + k] = static_cast<std::int32_t>(words[k] >> 8) >= threshold ? kept : 0.0f;
      }
    });
  });
}

}  // namespace troupe::kernels::cpu
