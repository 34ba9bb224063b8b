#include "kernels/initial.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/philox_block.h"

namespace troupe::kernels {
namespace {

/// Two words as one normal number (Box and Muller, 1958). `half` picks cosine or sine.
double normal(std::uint32_t a, std::uint32_t b, bool half) {
  const double u = (static_cast<double>(a) + 1) * 0x1p-32;  // (0, 1]
  const double angle = 2 * std::numbers::pi * static_cast<double>(b) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * (half ? std::sin(angle) : std::cos(angle));
}

}  // namespace

void init_normal(const View& view, std::uint64_t key, float std, Parallel& par) {
  float* out = view.as<float>();
  par_runs(par, 1, view.extent, Extent::whole(view.logical), [&](std::int64_t, Run run) {
    for_words(key, 0, run.global, run.count, [&](const std::uint32_t* words, std::int64_t i, std::int64_t n) {
      for (std::int64_t k = 0; k < n; ++k) {
        // Words 2j and 2j + 1 of a counter make its normals 2j (cosine) and 2j + 1 (sine).
        const bool odd = (run.global + i + k) % 2 != 0;
        const std::uint32_t* pair = words + k - (odd ? 1 : 0);
        out[run.local + i + k] = static_cast<float>(std * normal(pair[0], pair[1], odd));
      }
    });
  });
}

void init_constant(const View& view, float value, Parallel& par) {
  float* out = view.as<float>();
  constexpr std::int64_t block = 65536;
  const std::int64_t n = view.size();
  if (n > 0)
    par.for_each((n + block - 1) / block,
                 [&](std::int64_t b) { std::fill(out + b * block, out + std::min(n, (b + 1) * block), value); });
}

}  // namespace troupe::kernels
