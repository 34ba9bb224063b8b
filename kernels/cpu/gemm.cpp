#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/term_store.h"

namespace troupe::kernels {
namespace {

using namespace simd;

// Packed A is at most 576 KiB and stays in L2 while a block of C is made; a panel of packed B is at most 64 KiB.
constexpr std::int64_t a_block = 288 * gemm_k_block, n_block = 512;
constexpr std::int64_t a_floats = a_block + width, b_floats = panel_cols * gemm_k_block + width;

/// One operand with elements (i, k): its memory, its length along i, how it is stored.
struct Operand {
  const float* data;
  std::int64_t ld, extent;
  bool k_major;  ///< element (i, k) is at data[k * ld + i], else at data[i * ld + k]

  const float* at(std::int64_t i, std::int64_t k) const { return data + (k_major ? k * ld + i : i * ld + k); }
  template <std::int64_t W>
  void pack_block(std::int64_t i, std::int64_t m, std::int64_t k, std::int64_t kc, float* out,
                  Ahead* ahead = nullptr) const {
    pack<W>(k_major, at(i, k), ld, m, extent - i, kc, out, ahead);
  }
  Ahead ahead(std::int64_t i, std::int64_t m, std::int64_t k, std::int64_t kc) const {
    return k_major ? Ahead(at(i, k), kc, m, ld) : Ahead(at(i, k), m, kc, ld);
  }
};

/// How C is cut into tasks. Here, and only here, the cut may follow the number of threads: an element of C is the
/// same chain of multiply-adds wherever the cut is, and each cut costs packing once more.
struct Cut {
  std::int64_t rows, cols, row_tasks, col_tasks;
  Cut(std::int64_t M, std::int64_t N, std::int64_t threads) : rows(M), cols(threads == 1 ? N : n_block) {
    col_tasks = (N + cols - 1) / cols;
    if (threads > 1) {
      const std::int64_t tasks = std::max<std::int64_t>(1, 2 * threads / col_tasks), blocks = 96;
      rows = std::max(2 * blocks, ((M + tasks - 1) / tasks + blocks - 1) / blocks * blocks);
    }
    row_tasks = (M + rows - 1) / rows;
  }
};

/// C as floats.
struct Floats {
  float* c;
  std::int64_t ld;

  template <class F>
  void tile(std::int64_t i, std::int64_t j, std::int64_t, std::int64_t n, bool later, F&& multiply) const {
    multiply(FloatTile{c + i * ld + j, ld, n, later});
  }
};

/// A tile of terms in the first cache, while the sums that it is added to arrive there.
struct TermTile {
  float* hot;                // (12, 32)
  const std::int64_t* sums;  // null: none are needed
  std::int64_t ld;

  void fetch(int r) const {
    if (sums)
      for (std::int64_t j = 0; j < panel_cols; j += 8) __builtin_prefetch(sums + r * ld + j, 1);
  }
  void put(int r, v16 left, v16 right) const {
    store(hot + r * panel_cols, left);
    store(hot + r * panel_cols + width, right);
  }
};

/// C as terms, of one task.
struct TermMatrix {
  const Terms& c;
  TermStore store{c};
  float hot[panel_rows * panel_cols] = {};

  template <class F>
  void tile(std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t n, bool later, F&& multiply) {
    const std::int64_t at = i * c.ld + j;
    multiply(TermTile{hot, c.sums ? c.sums + at : nullptr, c.ld});
    store.put(at, hot, panel_cols, rows, n, c.accumulate || later);
  }
};

/// Rows [i0, i1) and columns [j0, j1) of C. Packs each panel of B just before it multiplies it, and prefetches its
/// source while it multiplies the previous panel: weights are read from DRAM.
template <class Matrix>
void multiply(const Operand& a, const Operand& b, std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1,
              std::int64_t K, Matrix&& c) {
  float* const pa = workspace(a_floats + b_floats);
  float* const pb = pa + a_floats;
  for (std::int64_t k = 0; k < K; k += gemm_k_block) {
    const std::int64_t kc = std::min(K - k, gemm_k_block);
    // B is packed once for each block of m_block rows.
    const std::int64_t m_block = a_block / kc / panel_rows * panel_rows;
    for (std::int64_t i = i0; i < i1; i += m_block) {
      const std::int64_t m = std::min(i1 - i, m_block);
      Ahead first = b.ahead(j0, std::min(j1 - j0, panel_cols), k, kc);
      a.pack_block<panel_rows>(i, m, k, kc, pa, &first);
      for (std::int64_t j = j0; j < j1; j += panel_cols) {
        const std::int64_t n = std::min(j1 - j, panel_cols), next = std::min(j1 - j - n, panel_cols);
        b.pack_block<panel_cols>(j, n, k, kc, pb);
        Ahead ahead = b.ahead(j + n, next, k, kc);
        for (std::int64_t r = 0; r < m; r += panel_rows) {
          const std::int64_t rows = std::min(panel_rows, m - r);
          c.tile(i + r, j, rows, n, k > 0,
                 [&](const auto& to) { tile_of<1, panel_rows>(rows, kc, pa + r * kc, pb, to, &ahead); });
        }
      }
    }
  }
}

/// Columns [j0, j1) of a C of one row, B stored by columns (a linear layer's weights, for one token): B is read once,
/// from DRAM: it is transposed on its way into the multiply-adds, and the next panel prefetched meanwhile.
void multiply_row(const float* a, const Operand& b, std::int64_t j0, std::int64_t j1, std::int64_t K, float* c) {
  for (std::int64_t j = j0; j < j1; j += panel_cols) {
    const std::int64_t n = std::min(j1 - j, panel_cols);
    for (std::int64_t k0 = 0; k0 < K; k0 += gemm_k_block) {
      const std::int64_t end = std::min(K, k0 + gemm_k_block);
      Ahead ahead = b.ahead(j + n, std::min(j1 - j - n, panel_cols), k0, end - k0);
      v16 acc[2] = {};
      std::int64_t k = k0;
      const auto columns = [&](std::int64_t cols) __attribute__((always_inline)) {
        for (; k + 4 <= end; k += 4) {
          for (std::int64_t line = 0; line < panel_cols * 4; line += width) ahead.next();
          for (std::int64_t h = 0; h < 2; ++h) {
            v16 t[4];
            load_columns(b.at(j + h * width, k), b.ld, cols - h * width, t);
            for (int i = 0; i < 4; ++i) acc[h] = fma(splat(a[k + i]), t[i], acc[h]);
          }
        }
      };
      if (n == panel_cols) columns(panel_cols);
      else columns(n);
      float sums[panel_cols];
      store(sums, acc[0]);
      store(sums + width, acc[1]);
      for (; k < end; ++k)
        for (std::int64_t i = 0; i < n; ++i) sums[i] = std::fma(a[k], *b.at(j + i, k), sums[i]);
      for (std::int64_t i = 0; i < n; ++i) c[j + i] = k0 > 0 ? c[j + i] + sums[i] : sums[i];
    }
  }
}

}  // namespace

void gemm(bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda,
          const float* b, std::int64_t ldb, float* c, std::int64_t ldc, Parallel& par) {
  if (M == 0 || N == 0) return;
  if (K == 0) {
    for (std::int64_t i = 0; i < M; ++i) std::fill(c + i * ldc, c + i * ldc + N, 0.0f);
    return;
  }
  const Operand left{a, lda, M, ta}, right{b, ldb, N, !tb};
  const Cut cut(M, N, par.threads());
  par.for_each(cut.row_tasks * cut.col_tasks, [&](std::int64_t task) {
    const std::int64_t i = task / cut.col_tasks * cut.rows, j = task % cut.col_tasks * cut.cols;
    if (M == 1 && !ta && tb) return multiply_row(a, right, j, std::min(N, j + cut.cols), K, c);
    multiply(left, right, i, std::min(M, i + cut.rows), j, std::min(N, j + cut.cols), K, Floats{c, ldc});
  });
}

void gemm_terms(bool ta, bool tb, std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda,
                const float* b, std::int64_t ldb, const Terms& out, Parallel& par) {
  if (M == 0 || N == 0) return;
  if (K == 0) {
    for (std::int64_t i = 0; i < M && !out.accumulate; ++i) TermStore(out).clear(i * out.ld, N);
    return;
  }
  const Operand left{a, lda, M, ta}, right{b, ldb, N, !tb};
  const Cut cut(M, N, par.threads());
  par.for_each(cut.row_tasks * cut.col_tasks, [&](std::int64_t task) {
    const std::int64_t i = task / cut.col_tasks * cut.rows, j = task % cut.col_tasks * cut.cols;
    multiply(left, right, i, std::min(M, i + cut.rows), j, std::min(N, j + cut.cols), K, TermMatrix{out});
  });
}

}  // namespace troupe::kernels
