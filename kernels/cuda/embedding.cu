// Rows of a table by token, and their gradient; kernels/cpu/embedding.cpp says what tokens outside the part give.
//
// Exact sums have no order: every term of the gradient is an atomic addition by a thread of its own. An f32 output adds
// the tokens of a row in ascending order: a block has some rows to itself and looks at all tokens, so that rows without
// tokens cost a comparison; threads have a column each.
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/extents.cuh"
#include "kernels/cuda/terms.cuh"
#include "kernels/cuda/vector.cuh"

namespace troupe::kernels::cuda {

namespace {

/// Rows [lo, lo + rows) of the table.
struct Rows {
  std::int64_t lo, rows;
  /// The row of this part; negative: it is not here.
  TROUPE_DEVICE std::int64_t of(std::int32_t token) const {
    const std::int64_t row = token - lo;
    return row < rows ? row : -1;
  }
};

template <class Word>
TROUPE_KERNEL void TROUPE_THREADS(vector_threads)
    take_rows(const std::int32_t* tokens, Rows part, const Word* table, std::int64_t cols, std::int64_t n, Word* out) {
  for_mine(n, [&](std::int64_t i) {
    const Quotient q = divide(i, cols);
    const std::int64_t row = part.of(tokens[q.whole]);
    out[i] = row >= 0 ? table[row * cols + q.rest] : Word{};
  });
}

TROUPE_KERNEL void TROUPE_THREADS(vector_threads) add_counts(const std::int32_t* tokens, Rows part, const float* dy,
                                                             std::int64_t cols, std::int64_t n, TermTarget to) {
  TermWriter writer{to};
  for_mine(n, [&](std::int64_t i) {
    const Quotient q = divide(i, cols);
    const std::int64_t row = part.of(tokens[q.whole]);
    if (row < 0) return;
    const float term = dy[i];
    atomic_add(reinterpret_cast<std::uint64_t*>(to.sums) + row * cols + q.rest, to_count(term, to.scale));
    writer.see(term);
  });
  writer.raise_peak();
}

constexpr int rows_of_block = 16, columns_of_thread = 4, columns_of_block = columns_of_thread * vector_threads;

/// The rows of the next tokens, and which of them the block has: a bit for each.
struct Found {
  std::int64_t row[2][vector_threads];
  std::uint32_t bits[2][vector_threads / warp_size];
};

/// Frequent words lie together in a vocabulary, so block b has rows b, b + blocks, ... of the table; and of these,
/// columns of one of `chunks`.
TROUPE_KERNEL void TROUPE_THREADS(vector_threads)
    add_tokens(const std::int32_t* tokens, Rows part, const float* dy, std::int64_t cols, std::int64_t n,
               std::int64_t blocks, std::int64_t chunks, TermTarget to) {
  Found& found = shared<Found>();
  TermWriter writer{to};
  const Quotient mine = divide(block_x(), chunks);
  const auto each_column = [&](auto&& f) {
#pragma unroll
    for (int k = 0; k < columns_of_thread; ++k) {
      const std::int64_t c = mine.rest * columns_of_block + k * vector_threads + thread_x();
      if (c < cols) f(c);
    }
  };
  if (!to.accumulate)
    for (std::int64_t row = mine.whole; row < part.rows; row += blocks)
      each_column([&](std::int64_t c) { to.values[row * cols + c] = 0; });
  int stage = 0;
  for (std::int64_t i = 0; i < n; i += vector_threads, stage ^= 1) {
    const std::int64_t row = i + thread_x() < n ? part.of(tokens[i + thread_x()]) : -1;
    std::uint32_t bits = row >= 0 && divide(row, blocks).rest == mine.whole ? 1u << thread_x() % warp_size : 0u;
    for (int b = 16; b > 0; b /= 2) bits |= shuffle_xor(bits, b);
    found.row[stage][thread_x()] = row;
    if (thread_x() % warp_size == 0) found.bits[stage][thread_x() / warp_size] = bits;
    sync_block();  // once a turn: the next one writes the other half
    for (int warp = 0; warp < vector_threads / warp_size; ++warp) {
      const std::uint32_t here = found.bits[stage][warp];
      for (int lane = 0; lane < warp_size && here >> lane != 0; ++lane) {
        if ((here >> lane & 1) == 0) continue;
        const int at = warp * warp_size + lane;
        const float* from = dy + (i + at) * cols;
        each_column([&](std::int64_t c) { writer.put(found.row[stage][at] * cols + c, from[c], true); });
      }
    }
  }
  writer.raise_peak();
}

}  // namespace

void embedding(const Call& call) {
  const View &tokens = call.in[0], &weight = call.in[1];
  const auto C = weight.shape[1], n = tokens.size() * C;
  const Rows part{weight.extent.dims[0].lo, weight.shape[0]};
  const auto* t = tokens.as<std::int32_t>();
  const float* w = weight.as<float>();  // (V, C)
  float* y = call.out[0].as<float>();   // (B, T, C)
  if (C % 4 == 0 && sixteen_bytes_at(w) && sixteen_bytes_at(y)) {
    launch(call.queue, vector_grid(n / 4), take_rows<Float4>, t, part, reinterpret_cast<const Float4*>(w), C / 4, n / 4,
           reinterpret_cast<Float4*>(y));
  } else {
    launch(call.queue, vector_grid(n), take_rows<float>, t, part, w, C, n, y);
  }
}

void embedding_grad(const Call& call) {
  const View &dy = call.in[0], &tokens = call.in[1], &dw = call.out[0];
  const auto C = dw.shape[1];
  const Rows part{dw.extent.dims[0].lo, dw.shape[0]};
  const auto* t = tokens.as<std::int32_t>();
  const float* g = dy.as<float>();                         // (B, T, C)
  const TermTarget to = term_target(dw, call.accumulate);  // (V, C)
  if (to.sums) {
    if (!to.accumulate && dw.bytes() > 0) clear(call.queue, to.sums, dw.bytes());
    const std::int64_t n = tokens.size() * C;
    Grid grid = vector_grid(n);
    grid.x = std::max<std::int64_t>(grid.x, 1);  // no term: the peak says so
    launch(call.queue, grid, add_counts, t, part, g, C, n, to);
    return;
  }
  const std::int64_t blocks = ceil_div(part.rows, rows_of_block), chunks = ceil_div(C, columns_of_block);
  launch(call.queue, {.x = blocks * chunks, .threads = vector_threads, .shared_bytes = sizeof(Found)}, add_tokens, t,
         part, g, C, tokens.size(), blocks, chunks, to);
}

}  // namespace troupe::kernels::cuda
