#include "kernels/cpu/blocks.h"
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace troupe::kernels::cpu {

using namespace simd;

void bias_add(const Call& call) {
  const auto N = call.in[1].size();
  const float *x = call.in[0].as<float>(), *b = call.in[1].as<float>();
  float* y = call.out[0].as<float>();
  for_blocks(*call.par, call.in[0].rows(), 32, [=](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r)
      map(
          N, y + r * N, [](v16 v, v16 c) { return v + c; }, x + r * N, b);
  });
}

void bias_grad(const Call& call) {
  const float* dy = call.in[0].as<float>();
  const auto N = call.out[0].size();
  column_sums(*call.par, N ? call.in[0].size() / N : 0, N, terms_of(call.out[0], call.accumulate),
              [=](std::int64_t r, std::int64_t c, auto&& at) { return at(dy + r * N + c); });
}

}  // namespace troupe::kernels::cpu
