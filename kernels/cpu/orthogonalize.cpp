// The Newton-Schulz iteration of Muon (Jordan et al., 2024): x <- a x + (b A + c A A) x with A = x x^T, in f32. Its
// coefficients take every singular value between 0 and 1 to between 0.7 and 1.2 in five steps.
#include <cmath>
#include <utility>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"
#include "kernels/square_sums.h"

namespace troupe::kernels::cpu {

using namespace simd;

namespace {

/// out = a x + b y, out may be x.
void combine(float* out, float a, const float* x, float b, const float* y, std::int64_t n, Parallel& par) {
  const v16 of_x = splat(a), of_y = splat(b);
  for_blocks(par, n, element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, out + i, [=](v16 p, v16 q) { return p * of_x + q * of_y; }, x + i, y + i);
  });
}

}  // namespace

void orthogonalize(const Call& call) {
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  const std::int64_t rows = call.in[0].shape[0], cols = call.in[0].shape[1], all = rows * cols;
  const bool wide = rows <= cols;  // then A = x x^T is the smaller product, else x^T x
  const std::int64_t n = wide ? rows : cols;
  const float* in = call.in[0].as<float>();
  float* out = call.out[0].as<float>();
  auto* next = reinterpret_cast<float*>(call.scratch.data());
  float *gram = next + all, *poly = gram + n * n;
  double squares = 0;
  row_square_sums({.rounded = in}, 1, all, &squares, *call.par);
  combine(out, static_cast<float>(1 / (std::sqrt(squares) + 1e-7)), in, 0, in, all, *call.par);
  const std::int64_t steps = call.attrs->integer("steps", 5);
  for (std::int64_t s = 0; s < steps; ++s) {
    if (wide) gemm(false, true, n, n, cols, out, cols, out, cols, gram, n, *call.par);
    else gemm(true, false, n, n, rows, out, cols, out, cols, gram, n, *call.par);
    gemm(false, false, n, n, n, gram, n, gram, n, poly, n, *call.par);
    combine(poly, c, poly, b, gram, n * n, *call.par);
    if (wide) gemm(false, false, rows, cols, n, poly, n, out, cols, next, cols, *call.par);
    else gemm(false, false, rows, cols, n, out, cols, poly, n, next, cols, *call.par);
    combine(out, a, out, 1, next, all, *call.par);
  }
}

}  // namespace troupe::kernels::cpu
