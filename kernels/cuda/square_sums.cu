// Square sums of a gradient's rows. Their written order is eight chains of additions in double, one for every eighth
// column, so eight threads add a row. Where rows are many and short, four rows share a warp. Else a block reads a row
// ahead of the eight that add: a row takes cols / 8 times the latency of an addition in double at least, which shows
// where rows are few (orthogonalize: one row of the whole matrix).
#include "kernels/cuda/vector.cuh"

namespace troupe::kernels::cuda {

namespace {

constexpr int row_threads = 128, each = 8, tile = row_threads * each;

/// ((0+4)+(2+6)) + ((1+5)+(3+7)) of the accumulators of eight neighbouring lanes, in each of them. All lanes call it.
TROUPE_DEVICE double sum_of_eight(double v) {
  v += shuffle_xor(v, 4);
  v += shuffle_xor(v, 2);
  return v + shuffle_xor(v, 1);
}
TROUPE_DEVICE double square(float x) { return static_cast<double>(x) * static_cast<double>(x); }

template <class G>
TROUPE_KERNEL void TROUPE_THREADS(row_threads) short_rows(G g, std::int64_t rows, std::int64_t cols, double* sums) {
  const std::int64_t row = (block_x() * row_threads + thread_x()) / 8, end = row < rows ? cols : 0;
  const int column = thread_x() % 8;
  double sum = 0;
  std::int64_t c = column;
  for (; c + 8 * (each - 1) < end; c += 8 * each) {
    float x[each][1];  // read before the additions, which wait for one another
#pragma unroll
    for (int k = 0; k < each; ++k) g.get(row * cols + c + 8 * k, x[k]);
#pragma unroll
    for (int k = 0; k < each; ++k) sum += square(x[k][0]);
  }
  for (; c < end; c += 8) {
    float x[1];
    g.get(row * cols + c, x);
    sum += square(x[0]);
  }
  sum = sum_of_eight(sum);
  if (column == 0 && row < rows) sums[row] = sum;
}

struct Squares {
  double of[2][tile];
};

template <class G>
TROUPE_KERNEL void TROUPE_THREADS(row_threads) long_rows(G g, std::int64_t rows, std::int64_t cols, double* sums) {
  Squares& squares = shared<Squares>();
  for (std::int64_t row = block_x(); row < rows; row += blocks_x()) {
    double sum = 0;
    float x[each][1];
    const auto read = [&](std::int64_t c0) {
#pragma unroll
      for (int k = 0; k < each; ++k) {
        const std::int64_t c = c0 + k * row_threads + thread_x();
        x[k][0] = 0;
        if (c < cols) g.get(row * cols + c, x[k]);
      }
    };
    const auto write = [&](int stage) {
#pragma unroll
      for (int k = 0; k < each; ++k) squares.of[stage][k * row_threads + thread_x()] = square(x[k][0]);
    };
    read(0);
    write(0);
    sync_block();
    int stage = 0;
    for (std::int64_t c = 0; c < cols; c += tile, stage ^= 1) {
      const bool more = c + tile < cols;
      if (more) read(c + tile);
      if (thread_x() < warp_size) {  // lanes 8 to 31 do what the first eight do
        const double* from = squares.of[stage] + thread_x() % 8;
        // A square of 0 changes no sum: they begin with +0. Whole turns of 8 * each columns.
        const int turns = static_cast<int>(((more ? tile : cols - c) + 8 * each - 1) / (8 * each));
        double now[each], next[each] = {};  // read a turn ahead of the additions
#pragma unroll
        for (int k = 0; k < each; ++k) now[k] = from[8 * k];
        for (int turn = 1; turn <= turns; ++turn) {
          from += 8 * each;
          if (turn < turns) {
#pragma unroll
            for (int k = 0; k < each; ++k) next[k] = from[8 * k];
          }
#pragma unroll
          for (int k = 0; k < each; ++k) sum += now[k];
#pragma unroll
          for (int k = 0; k < each; ++k) now[k] = next[k];
        }
      }
      if (more) write(stage ^ 1);
      sync_block();
    }
    if (thread_x() < warp_size) {
      sum = sum_of_eight(sum);
      if (thread_x() == 0) sums[row] = sum;
    }
    sync_block();  // the next row is written where this one was read
  }
}

}  // namespace

void row_square_sums(const Gradient& g, std::int64_t rows, std::int64_t cols, double* sums, void* queue) {
  with_gradient(g, [&](const auto& gradient) {
    using G = std::decay_t<decltype(gradient)>;
    if (cols < 512 || rows >= 64 * 1024) {
      launch(queue, {.x = ceil_div(8 * rows, row_threads), .threads = row_threads}, short_rows<G>, gradient, rows, cols,
             sums);
    } else {
      launch(queue, {.x = rows, .threads = row_threads, .shared_bytes = sizeof(Squares)}, long_rows<G>, gradient, rows,
             cols, sums);
    }
  });
}

}  // namespace troupe::kernels::cuda
