// y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps), row by row (Zhang and Sennrich, 2019).
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace troupe::kernels::cpu {

using namespace simd;

namespace {
constexpr std::int64_t row_block = 32;
}

void rmsnorm(const Call& call) {
  const View& in = call.in[0];
  const auto C = in.cols();
  const float eps = static_cast<float>(call.attrs->real("eps", 1e-6));
  const float* w = call.in[1].as<float>();
  for_blocks(*call.par, in.rows(), row_block, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const float* x = in.as<float>() + r * C;
      const float mean = reduce(
                             C, [](v16 a) { return a * a; }, x) /
                         static_cast<float>(C);
      const float rstd = 1.0f / std::sqrt(mean + eps);
      const v16 s = splat(rstd);
      map(
          C, call.out[0].as<float>() + r * C, [s](v16 a, v16 g) { return a * s * g; }, x, w);
      call.out[1].as<float>()[r] = rstd;
    }
  });
}

void rmsnorm_dx(const Call& call) {
  const View& in = call.in[1];
  const auto C = in.cols();
  const float *w = call.in[2].as<float>(), *rstds = call.in[3].as<float>();
  for_blocks(*call.par, in.rows(), row_block, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const float *dy = call.in[0].as<float>() + r * C, *x = in.as<float>() + r * C;
      const float dot = reduce(
          C, [](v16 d, v16 g, v16 a) { return d * g * a; }, dy, w, x);
      // dx = rstd * (dy w - x * rstd^2 * mean(dy w x))
      const v16 s = splat(rstds[r]), t = splat(-dot * rstds[r] * rstds[r] / static_cast<float>(C));
      map(
          C, call.out[0].as<float>() + r * C, [s, t](v16 d, v16 g, v16 a) { return s * fma(a, t, d * g); }, dy, w, x);
    }
  });
}

void rmsnorm_dw(const Call& call) {
  const View& dy = call.in[0];
  const float *g = dy.as<float>(), *x = call.in[1].as<float>(), *rstd = call.in[2].as<float>();
  const auto C = call.out[0].size();
  column_sums(
      *call.par, C ? dy.size() / C : 0, C, terms_of(call.out[0], call.accumulate),
      [=](std::int64_t r, std::int64_t c, auto&& at) { return at(g + r * C + c) * at(x + r * C + c) * rstd[r]; });
}

}  // namespace troupe::kernels::cpu
