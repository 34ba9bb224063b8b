#include "kernels/initial.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/philox_block.h"
#include "kernels/exact_math.h"

namespace troupe::kernels {
namespace {

/// Two words as two normal numbers (Box and Muller, 1958), times `std`: the cosine's, then the sine's.
void normals(const std::uint32_t* words, double std, float* out) {
  const double u = (static_cast<double>(words[0]) + 1) * 0x1p-32;  // (0, 1]
  const double angle = 2 * std::numbers::pi * static_cast<double>(words[1]) * 0x1p-32;
  const double root = std::sqrt(-2 * exact::log(u));
  double sine, cosine;
  exact::sin_cos(angle, sine, cosine);
  out[0] = static_cast<float>(std * (root * cosine));
  out[1] = static_cast<float>(std * (root * sine));
}

}  // namespace

void init_normal(const View& view, std::uint64_t key, float std, Parallel& par) {
  float* out = view.as<float>();
  par_runs(par, 1, view.extent, Extent::whole(view.logical), [&](std::int64_t, Run run) {
    for_words(key, 0, run.global, run.count, [&](const std::uint32_t* words, std::int64_t i, std::int64_t n) {
      // Words 2j and 2j + 1 of a counter make its normals 2j and 2j + 1; a run may begin or end within a pair.
      const std::int64_t before = (run.global + i) % 2, pairs = (before + n + 1) / 2;
      float both[words_per_block];
      for (std::int64_t j = 0; j < pairs; ++j) normals(words - before + 2 * j, std, both + 2 * j);
      std::copy_n(both + before, n, out + run.local + i);
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
