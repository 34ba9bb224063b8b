// rope and rope_at. The table of cosines and sines follows kernels/cpu/rope.cpp: exact values at positions that 64
// divides, a rotation in double from one position to the next in between. A thread fills one run of 64 positions for
// one frequency: a chain of some 1,500 cycles, the same for a text of any length.
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/exact_math.h"

namespace troupe::kernels::cuda {

namespace {

constexpr std::int64_t run = 64;
constexpr int table_threads = 64, turn_threads = 256, rows_per_thread = 4;

/// Table (T, 2, half) of positions [first, first + T), where first = lo + *position; no position: 0. Grid: threads for
/// the most runs that T positions lie in, whatever the first of them is.
TROUPE_KERNEL void TROUPE_THREADS(table_threads)
    fill_table(float* table, const std::int32_t* position, std::int64_t lo, std::int64_t T, std::int64_t half,
               double theta, double sign) {
  const std::int64_t i = block_x() * table_threads + thread_x(), j = i % half;
  const std::int64_t first = lo + (position ? *position : 0), begin = (first / run + i / half) * run;
  const std::int64_t end = begin + run < first + T ? begin + run : first + T;
  if (begin >= end) return;
  const double w = exact::pow(theta, -static_cast<double>(j) / static_cast<double>(half)) * sign;
  double dc, ds, c, s;
  exact::sin_cos(w, ds, dc);
  exact::sin_cos(w * static_cast<double>(begin), s, c);
  for (std::int64_t p = begin; p < end; ++p) {
    if (p >= first) {
      float* row = table + (p - first) * 2 * half;
      row[j] = static_cast<float>(c);
      row[half + j] = static_cast<float>(s);
    }
    const double next = c * dc - s * ds;
    s = s * dc + c * ds;
    c = next;
  }
}

/// V: float, or four of them: a thread turns the pairs (j, j + half) of a head for one j or for four, in each of four
/// rows. half: in units of V.
template <class V>
TROUPE_KERNEL void TROUPE_THREADS(turn_threads)
    turn_rows(std::int64_t rows, std::int64_t T, int heads, int half, int blocks_per_row, const V* __restrict__ table,
              const V* __restrict__ x, V* __restrict__ y) {
  constexpr int width = sizeof(V) / sizeof(float);
  const int item = static_cast<int>(block_x() % blocks_per_row) * threads_x() + thread_x();
  const std::int64_t first = block_x() / blocks_per_row * rows_per_thread, columns = std::int64_t{2} * heads * half;
  if (item >= heads * half) return;
  const int h = item / half, j = item % half;
  std::int64_t t = first % T;
#pragma unroll
  for (int k = 0; k < rows_per_thread; ++k, t = t + 1 < T ? t + 1 : 0) {
    if (first + k >= rows) return;
    const std::int64_t at = (first + k) * columns + std::int64_t{2} * h * half + j;
    const V cosine = table[t * 2 * half + j], sine = table[t * 2 * half + half + j], one = x[at], other = x[at + half];
    const auto *c = reinterpret_cast<const float*>(&cosine), *s = reinterpret_cast<const float*>(&sine);
    const auto *a = reinterpret_cast<const float*>(&one), *b = reinterpret_cast<const float*>(&other);
    V low, high;
#pragma unroll
    for (int e = 0; e < width; ++e) {
      reinterpret_cast<float*>(&low)[e] = fmaf(a[e], c[e], -(b[e] * s[e]));
      reinterpret_cast<float*>(&high)[e] = fmaf(b[e], c[e], a[e] * s[e]);
    }
    y[at] = low;
    y[at + half] = high;
  }
}

template <class V>
void turn(const Call& call, std::int64_t rows, std::int64_t T, std::int64_t heads, std::int64_t half) {
  const std::int64_t items = heads * half;
  const int threads = static_cast<int>(std::min<std::int64_t>(ceil_div(items, warp_size) * warp_size, turn_threads));
  const std::int64_t blocks_per_row = ceil_div(items, threads);
  launch(call.queue, {.x = ceil_div(rows, rows_per_thread) * blocks_per_row, .threads = threads}, turn_rows<V>, rows, T,
         heads, half, blocks_per_row, reinterpret_cast<const V*>(call.scratch.data()),
         reinterpret_cast<const V*>(call.in[0].as<float>()), reinterpret_cast<V*>(call.out[0].as<float>()));
}

}  // namespace

void rope(const Call& call) {
  const View &x = call.in[0], &y = call.out[0];  // (B, T, H * D)
  if (x.size() == 0) return;
  const auto T = x.shape[1], D = call.attrs->integer("head_dim"), half = D / 2, heads = x.shape[2] / D;
  const auto* position = call.in.size() > 1 ? call.in[1].as<std::int32_t>() : nullptr;  // rope_at
  const std::int64_t runs = (T + 2 * (run - 1)) / run;
  launch(call.queue, {.x = ceil_div(runs * half, table_threads), .threads = table_threads}, fill_table,
         reinterpret_cast<float*>(call.scratch.data()), position, x.extent.dims[1].lo, T, half,
         call.attrs->real("theta", 10000.0), call.attrs->integer("inverse") != 0 ? -1.0 : 1.0);
  const std::int64_t rows = x.shape[0] * T;
  const bool fours = half % 4 == 0 && sixteen_bytes_at(x.data) && sixteen_bytes_at(y.data);
  if (fours) turn<Float4>(call, rows, T, heads, half / 4);
  else turn<float>(call, rows, T, heads, half);
}

}  // namespace troupe::kernels::cuda
