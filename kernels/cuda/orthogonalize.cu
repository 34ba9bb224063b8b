// The Newton-Schulz iteration of Muon; kernels/cpu/orthogonalize.cpp has the formula. Its first step, the square sum of
// the whole matrix, is eight chains in written order: 1/8 of the elements times the latency of an addition in double,
// about 10 ms for 4096 x 4096, where five steps of products take about 50 ms. Its scalar stays on the device.
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/vector.h"

namespace troupe::kernels::cuda {

namespace {

/// a x + b y.
struct Combine {
  float a, b;
  TROUPE_DEVICE float operator()(float x, float y) const { return x * a + y * b; }
};
/// By the square root of `squares`; the second summand is the CPU's, which makes NaN of an infinite x.
struct Normalize {
  const double* squares;
  TROUPE_DEVICE float operator()(float x) const {
    return x * static_cast<float>(1 / (std::sqrt(*squares) + 1e-7)) + x * 0.0f;
  }
};

/// Floats of a matrix in scratch: each begins at a multiple of sixteen bytes.
std::int64_t room(std::int64_t floats) { return ceil_div(floats, 16) * 16; }

/// The square sum lies before the matrices.
constexpr std::int64_t head_bytes = 64;

}  // namespace

std::int64_t orthogonalize_scratch_bytes(std::span<const TensorType> in, std::span<const TensorType>, const Attrs&) {
  const Shape& shape = in[0].shape;
  const std::int64_t n = std::min(shape[0], shape[1]);
  return head_bytes + 4 * (room(shape[0] * shape[1]) + 2 * room(n * n));
}

void orthogonalize(const Call& call) {
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  void* q = call.queue;
  const std::int64_t rows = call.in[0].shape[0], cols = call.in[0].shape[1], all = rows * cols;
  const bool wide = rows <= cols;  // then A = x x^T is the smaller product, else x^T x
  const std::int64_t n = wide ? rows : cols;
  const float* in = call.in[0].as<float>();
  float* out = call.out[0].as<float>();
  auto* squares = reinterpret_cast<double*>(call.scratch.data());
  auto* next = reinterpret_cast<float*>(call.scratch.data() + head_bytes);
  float *gram = next + room(all), *poly = gram + room(n * n);
  row_square_sums({.sums = {}, .rounded = in}, 1, all, squares, q);
  map(q, all, out, Normalize{squares}, in);
  const std::int64_t steps = call.attrs->integer("steps", 5);
  for (std::int64_t s = 0; s < steps; ++s) {
    if (wide) gemm(q, false, true, n, n, cols, out, cols, out, cols, gram, n);
    else gemm(q, true, false, n, n, rows, out, cols, out, cols, gram, n);
    gemm(q, false, false, n, n, n, gram, n, gram, n, poly, n);
    map(q, n * n, poly, Combine{c, b}, static_cast<const float*>(poly), static_cast<const float*>(gram));
    if (wide) gemm(q, false, false, rows, cols, n, poly, n, out, cols, next, cols);
    else gemm(q, false, false, rows, cols, n, out, cols, poly, n, next, cols);
    map(q, all, out, Combine{a, 1}, static_cast<const float*>(out), static_cast<const float*>(next));
  }
}

}  // namespace troupe::kernels::cuda
