#include "kernels/cuda/gemm.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/terms.cuh"

namespace troupe::kernels::cuda {

namespace {

constexpr int threads = 256;
/// A block of threads makes `tile` x `tile` elements, each thread 8 x 8 of them: rows and columns 4 i .. 4 i + 3 and
/// 64 + 4 i .. for its i of 16, so that a warp reads shared memory without conflicts.
constexpr int tile = 128, deep = 8;

/// Elements [i, k] of both operands of one step of `deep` k. A row more of padding: stores of a transposed tile hit
/// other banks.
struct Tiles {
  float a[2][deep][tile + 4], b[2][deep][tile + 4];
};

struct Operand {
  const float* data;
  std::int64_t ld, extent;
  bool k_major;  ///< element (i, k) is at data[k * ld + i], else at data[i * ld + k]
};

/// What this thread carries of one step of an operand: four elements, from device memory to a tile.
struct Carried {
  float v[4];

  /// Elements beyond the operand are 0: no element of C that exists reads them.
  TROUPE_DEVICE void read(const Operand& m, std::int64_t i0, std::int64_t k0, std::int64_t k_end) {
    const int t = thread_x();
    if (m.k_major) {
      const std::int64_t k = k0 + t / 32, i = i0 + t % 32 * 4;
      const float* p = m.data + k * m.ld + i;
      if (k < k_end && i + 3 < m.extent && reinterpret_cast<std::uintptr_t>(p) % 16 == 0) {
        const Float4 four = *reinterpret_cast<const Float4*>(p);
        for (int e = 0; e < 4; ++e) v[e] = four.v[e];
      } else {
        for (int e = 0; e < 4; ++e) v[e] = k < k_end && i + e < m.extent ? p[e] : 0.0f;
      }
    } else {
      const std::int64_t i = i0 + t / 2, k = k0 + t % 2 * 4;
      const float* p = m.data + i * m.ld + k;
      if (i < m.extent && k + 3 < k_end && reinterpret_cast<std::uintptr_t>(p) % 16 == 0) {
        const Float4 four = *reinterpret_cast<const Float4*>(p);
        for (int e = 0; e < 4; ++e) v[e] = four.v[e];
      } else {
        for (int e = 0; e < 4; ++e) v[e] = i < m.extent && k + e < k_end ? p[e] : 0.0f;
      }
    }
  }
  TROUPE_DEVICE void write(bool k_major, float (&to)[deep][tile + 4]) const {
    const int t = thread_x();
    if (k_major) {
      Float4 four;
      for (int e = 0; e < 4; ++e) four.v[e] = v[e];
      *reinterpret_cast<Float4*>(&to[t / 32][t % 32 * 4]) = four;
    } else {
      for (int e = 0; e < 4; ++e) to[t % 2 * 4 + e][t / 2] = v[e];
    }
  }
};

/// Eight elements of row k of a tile, of the thread's group of sixteen.
TROUPE_DEVICE void take(const float (&from)[tile + 4], int group, float (&v)[8]) {
  for (int h = 0; h < 2; ++h) {
    const Float4 four = *reinterpret_cast<const Float4*>(&from[h * 64 + group * 4]);
    for (int e = 0; e < 4; ++e) v[h * 4 + e] = four.v[e];
  }
}

/// One step: `count` multiply-adds of each element, in the order of k.
template <bool whole>
TROUPE_DEVICE void multiply(const Tiles& tiles, int stage, int count, int row, int col, float (&acc)[8][8]) {
#pragma unroll
  for (int k = 0; k < deep; ++k) {
    if (!whole && k >= count) return;
    float a[8], b[8];
    take(tiles.a[stage][k], row, a);
    take(tiles.b[stage][k], col, b);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
  }
}

/// Block (x, y) makes rows from 128 y and columns from 128 x on, of every block of k in turn; `put(i, j, value, later)`
/// stores what a block of k adds to an element.
template <class Put>
TROUPE_DEVICE void product(const Operand& a, const Operand& b, std::int64_t K, Put&& put) {
  Tiles& tiles = shared<Tiles>();
  const std::int64_t i0 = block_y() * tile, j0 = block_x() * tile;
  const int row = thread_x() / 16, col = thread_x() % 16;
  for (std::int64_t k0 = 0; k0 < K; k0 += gemm_k_block) {
    const std::int64_t end = k0 + gemm_k_block < K ? k0 + gemm_k_block : K;
    float acc[8][8] = {};
    Carried of_a, of_b;
    of_a.read(a, i0, k0, end);
    of_b.read(b, j0, k0, end);
    of_a.write(a.k_major, tiles.a[0]);
    of_b.write(b.k_major, tiles.b[0]);
    sync_block();
    int stage = 0;
    for (std::int64_t k = k0; k < end; k += deep, stage ^= 1) {
      const bool more = k + deep < end;
      if (more) {
        of_a.read(a, i0, k + deep, end);
        of_b.read(b, j0, k + deep, end);
      }
      if (k + deep <= end) multiply<true>(tiles, stage, deep, row, col, acc);
      else multiply<false>(tiles, stage, static_cast<int>(end - k), row, col, acc);
      if (more) {
        of_a.write(a.k_major, tiles.a[stage ^ 1]);
        of_b.write(b.k_major, tiles.b[stage ^ 1]);
      }
      sync_block();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const std::int64_t r = i0 + i / 4 * 64 + row * 4 + i % 4, c = j0 + j / 4 * 64 + col * 4 + j % 4;
        if (r < a.extent && c < b.extent) put(r, c, acc[i][j], k0 > 0);
      }
  }
}

TROUPE_KERNEL void TROUPE_THREADS(threads)
    product_values(Operand a, Operand b, std::int64_t K, float* c, std::int64_t ldc) {
  product(a, b, K, [=](std::int64_t i, std::int64_t j, float value, bool later) {
    float* p = c + i * ldc + j;
    *p = later ? *p + value : value;
  });
}

TROUPE_KERNEL void TROUPE_THREADS(threads) product_terms(Operand a, Operand b, std::int64_t K, TermTarget to) {
  TermWriter writer{to};
  product(a, b, K, [&](std::int64_t i, std::int64_t j, float value, bool later) {
    writer.put(i * to.ld + j, value, to.accumulate || later);
  });
  writer.raise_peak();
}

/// Parts (blocks along z, M, N): what each block of k adds to an element.
TROUPE_KERNEL void TROUPE_THREADS(threads) product_parts(Operand a, Operand b, std::int64_t K, float* parts) {
  const std::int64_t k = block_z() * gemm_k_block, M = a.extent, N = b.extent;
  a.data += a.k_major ? k * a.ld : k;
  b.data += b.k_major ? k * b.ld : k;
  float* part = parts + block_z() * M * N;
  product(a, b, K - k < gemm_k_block ? K - k : gemm_k_block,
          [=](std::int64_t i, std::int64_t j, float value, bool) { part[i * N + j] = value; });
}

/// C (M, N) = or += parts[0] + ... + parts[count - 1], in this order.
TROUPE_KERNEL void TROUPE_THREADS(threads)
    add_parts(const float* __restrict__ parts, std::int64_t count, bool later, std::int64_t M, std::int64_t N,
              float* __restrict__ c, std::int64_t ldc) {
  const std::int64_t e = block_x() * threads + thread_x();
  if (e >= M * N) return;
  float* to = c + e / N * ldc + e % N;
  float sum = later ? *to + parts[e] : parts[e];
#pragma unroll 8
  for (std::int64_t i = 1; i < count; ++i) sum += parts[i * M * N + e];
  *to = sum;
}

TROUPE_KERNEL void TROUPE_THREADS(threads) clear_rows(TermTarget to, std::int64_t N) {
  const std::int64_t at = block_y() * to.ld;
  for (std::int64_t j = block_x() * threads + thread_x(); j < N; j += blocks_x() * threads) {
    if (to.sums) to.sums[at + j] = 0;
    else to.values[at + j] = 0;
  }
}

Grid grid_of(std::int64_t M, std::int64_t N) {
  return {.x = ceil_div(N, tile), .y = ceil_div(M, tile), .threads = threads, .shared_bytes = sizeof(Tiles)};
}

/// Row blocks of one launch at most: 65,535 blocks along y.
constexpr std::int64_t rows_at_once = std::int64_t{65535} * tile;

/// Blocks of threads that fill a GPU of some 130 processors twice.
constexpr std::int64_t enough_blocks = 264;

}  // namespace

void gemm(void* queue, bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a,
          std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
  if (M == 0 || N == 0) return;
  if (K == 0) return gemm_terms(queue, ta, tb, M, N, K, a, lda, b, ldb, {.values = c, .ld = ldc});
  for (std::int64_t i = 0; i < M; i += rows_at_once) {
    const std::int64_t m = std::min(M - i, rows_at_once);
    launch(queue, grid_of(m, N), product_values, Operand{a + (ta ? i : i * lda), lda, m, ta}, Operand{b, ldb, N, !tb},
           K, c + i * ldc, ldc);
  }
}

void gemm_by_blocks(void* queue, bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a,
                    std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
                    std::span<float> scratch) {
  if (M == 0 || N == 0) return;
  const std::int64_t tiles = ceil_div(M, tile) * ceil_div(N, tile), k_blocks = ceil_div(K, gemm_k_block);
  const std::int64_t at_once =
      std::min({enough_blocks / tiles, k_blocks, static_cast<std::int64_t>(scratch.size()) / (M * N)});
  if (at_once < 2) return gemm(queue, ta, tb, M, N, K, a, lda, b, ldb, c, ldc);
  for (std::int64_t k = 0; k < K; k += at_once * gemm_k_block) {
    const Operand of_a{a + (ta ? k * lda : k), lda, M, ta}, of_b{b + (tb ? k : k * ldb), ldb, N, !tb};
    Grid grid = grid_of(M, N);
    grid.z = std::min(at_once, ceil_div(K - k, gemm_k_block));
    launch(queue, grid, product_parts, of_a, of_b, K - k, scratch.data());
    launch(queue, {.x = ceil_div(M * N, threads), .threads = threads}, add_parts, scratch.data(), grid.z, k > 0, M, N,
           c, ldc);
  }
}

std::int64_t gemm_by_blocks_floats(std::int64_t M, std::int64_t N, std::int64_t K) {
  return std::min(enough_blocks * tile * tile, ceil_div(K, gemm_k_block) * M * N);
}

void gemm_terms(void* queue, bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a,
                std::int64_t lda, const float* b, std::int64_t ldb, const Terms& out) {
  if (M == 0 || N == 0) return;
  for (std::int64_t i = 0; i < M; i += rows_at_once) {
    const std::int64_t m = std::min(M - i, rows_at_once);
    Terms to = out;
    if (to.sums) to.sums += i * to.ld;
    else to.values += i * to.ld;
    if (K > 0) {
      launch(queue, grid_of(m, N), product_terms, Operand{a + (ta ? i : i * lda), lda, m, ta}, Operand{b, ldb, N, !tb},
             K, term_target(to));
    } else if (!out.accumulate) {
      for (std::int64_t r = 0; r < m; r += 65535) {
        Terms rows = to;
        if (rows.sums) rows.sums += r * rows.ld;
        else rows.values += r * rows.ld;
        launch(queue, {.x = 1, .y = std::min<std::int64_t>(m - r, 65535), .threads = threads}, clear_rows,
               term_target(rows), N);
      }
    }
  }
}

}  // namespace troupe::kernels::cuda
