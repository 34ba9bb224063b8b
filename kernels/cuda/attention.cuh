// Pieces of the attention kernels, with the bits of kernels/cpu/attention_blocks.h.
//
// A block of 192 threads takes 96 positions of one head (its rows: queries, or keys) against blocks of 96 positions of
// the other kind (columns), one after the other in the written order. Scores are 8 rows x 6 columns of each thread, and
// what comes of them 8 rows x 4 elements of the head at a time: chains of fused multiply-adds in registers, from tiles
// in shared memory. Columns c, c + 16, .. of a row are with lane c of sixteen, which adds them as lane c of the CPU's
// vectors does.
//
// The written order adds blocks of columns in turn, so that only heads, blocks of rows and elements are parallel.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace troupe::kernels::cuda::heads {

inline constexpr int seq_block = 96, panel_rows = 12;  // as kernels/cpu/attention_blocks.h and micro.h have them
inline constexpr int threads = 192;
inline constexpr int deep = 32;       // elements of a head in one step of the scores
inline constexpr int part = 64;       // elements of a head that times() makes at once
inline constexpr int most_parts = 2;  // those that a block keeps in registers; more elements are other blocks'
inline constexpr int pitch = seq_block + 4;

/// HeadShape of the CPU's bodies, without what is packed.
struct Shape {
  int B, T, H, KV, D;            ///< H, KV: heads of this part
  int group, first_q, first_kv;  ///< of the whole: see HeadShape
  float scale;

  TROUPE_DEVICE int q_ld() const { return H * D; }
  TROUPE_DEVICE int kv_ld() const { return KV * D; }
  /// Where position t of a head begins.
  TROUPE_DEVICE std::int64_t q_at(int b, int t, int h) const { return (std::int64_t{b} * T + t) * q_ld() + h * D; }
  TROUPE_DEVICE std::int64_t kv_at(int b, int t, int kv) const { return (std::int64_t{b} * T + t) * kv_ld() + kv * D; }
  /// Where lse has it.
  TROUPE_DEVICE std::int64_t row_at(int b, int t, int h) const { return (std::int64_t{b} * T + t) * H + h; }
  /// The key-value head of a query head.
  TROUPE_DEVICE int kv_of(int h) const { return (first_q + h) / group - first_kv; }
  /// The first query head of key-value head `kv` or a later one.
  TROUPE_DEVICE int queries_from(int kv) const {
    const int lo = (first_kv + kv) * group - first_q;
    return lo < 0 ? 0 : lo < H ? lo : H;
  }
};
inline Shape shape_of(const View& q, const View& k, std::int64_t D) {
  const auto narrow = [](std::int64_t n) { return static_cast<int>(n); };
  return {.B = narrow(q.shape[0]),
          .T = narrow(q.shape[1]),
          .H = narrow(q.shape[2] / D),
          .KV = narrow(k.shape[2] / D),
          .D = narrow(D),
          .group = narrow(q.logical[2] / k.logical[2]),
          .first_q = narrow(q.extent.dims[2].lo / D),
          .first_kv = narrow(k.extent.dims[2].lo / D),
          .scale = 1.0f / std::sqrt(static_cast<float>(D))};
}

/// Positions of a head in device memory, from one on.
struct Rows {
  const float* data;
  int ld;     ///< floats from one to the next
  int count;  ///< those that exist, at most seq_block
  TROUPE_DEVICE bool aligned() const { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && ld % 4 == 0; }
};

/// The shared memory of a block.
struct Tiles {
  union {
    struct {
      float rows[deep][pitch];     ///< [element][row]
      float columns[deep][pitch];  ///< [element][column_at]
    };
    float factors[seq_block][part];  ///< [column][element]
  };
  float weights[seq_block][pitch];  ///< [column][row]
  // What gradients read again for each block: their registers are full.
  float lse[seq_block], delta[seq_block];  ///< of queries
  std::int64_t queries;                    ///< where they begin
};

/// This thread's place: rows 4 group .. and 48 + 4 group .., columns lane, lane + 16, ..
TROUPE_DEVICE int row_group() { return thread_x() / 16; }
TROUPE_DEVICE int lane() { return thread_x() % 16; }
TROUPE_DEVICE int row_of(int e) { return e / 4 * (seq_block / 2) + row_group() * 4 + e % 4; }
TROUPE_DEVICE int column_of(int j) { return lane() + 16 * j; }
/// Which columns a row has: on the diagonal, causal attention has keys up to the query, and queries from the key on.
/// Off it, all.
struct Causal {
  int row_less_column;  ///< of row 4 group and column lane; off the diagonal so far that any comparison holds
  static TROUPE_DEVICE Causal of_queries(bool diagonal) { return {diagonal ? row_group() * 4 - lane() : seq_block}; }
  static TROUPE_DEVICE Causal of_keys(bool diagonal) { return {diagonal ? row_group() * 4 - lane() : -seq_block}; }
  TROUPE_DEVICE int difference(int e, int j) const {
    return row_less_column + (e / 4 * (seq_block / 2) + e % 4 - 16 * j);
  }
  TROUPE_DEVICE bool key_of_query(int e, int j) const { return difference(e, j) >= 0; }
  TROUPE_DEVICE bool query_of_key(int e, int j) const { return difference(e, j) <= 0; }
};
/// Where a tile has a column: the six of a thread are side by side.
TROUPE_DEVICE int column_at(int column) { return column % 16 * 6 + column / 16; }

/// Of numbers that belong to the thread's rows, lane e has that of row row_of(e), for e < 8: this is row row_of(e)'s.
/// All lanes call it.
TROUPE_DEVICE float of_row(float mine, int e) { return shuffle(mine, thread_x() % warp_size / 16 * 16 + e); }

/// Floats [0, n) of four at p, 0 beyond.
TROUPE_DEVICE Float4 four_at(const float* p, int n) {
  Float4 four;
  for (int e = 0; e < 4; ++e) four.v[e] = e < n ? p[e] : 0.0f;
  return four;
}
TROUPE_DEVICE Float4 four_at(const float* p) { return *reinterpret_cast<const Float4*>(p); }

/// Elements [d, d + deep) of positions, 0 beyond D, to a tile that has the positions side by side.
template <bool columns>
TROUPE_DEVICE void load_across(const Rows& from, int d, int D, float (&to)[deep][pitch]) {
  // Four threads read 64 bytes of a position: whole sectors; the stores of a warp hit a bank at most twice.
  constexpr int at_once = threads / 4, loads = seq_block * deep / 4 / threads;
  static_assert(2 * at_once == seq_block && loads * threads * 4 == seq_block * deep && at_once % 16 == 0);
  const int position = thread_x() / 4, element = thread_x() % 4 * 4;
  const float* const first = from.data + position * from.ld + d + element;
  const int at = columns ? column_at(position) : position, next = columns ? at_once / 16 : at_once;
  const auto put = [&](int i, const Float4& four) {
    for (int e = 0; e < 4; ++e) to[element + i / 2 * 16 + e][at + i % 2 * next] = four.v[e];
  };
  if (D - d >= deep && from.aligned()) {
    Float4 four[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      four[i] = Float4{};
      if (position + i % 2 * at_once < from.count) four[i] = four_at(first + i % 2 * at_once * from.ld + i / 2 * 16);
    }
#pragma unroll
    for (int i = 0; i < loads; ++i) put(i, four[i]);
  } else {
#pragma unroll 1
    for (int i = 0; i < loads; ++i)
      put(i, four_at(first + i % 2 * at_once * from.ld + i / 2 * 16,
                     position + i % 2 * at_once < from.count ? D - d - element - i / 2 * 16 : 0));
  }
}

/// sums[e][j] = row row_of(e) times column column_of(j): one chain over the D elements. All threads call it.
TROUPE_DEVICE void scores(Tiles& tiles, const Rows& rows, const Rows& columns, int D, float (&sums)[8][6]) {
#pragma unroll
  for (int e = 0; e < 8; ++e)
#pragma unroll
    for (int j = 0; j < 6; ++j) sums[e][j] = 0;
#pragma unroll 1
  for (int d = 0; d < D; d += deep) {
    sync_block();
    load_across<false>(rows, d, D, tiles.rows);
    load_across<true>(columns, d, D, tiles.columns);
    sync_block();
    const int count = D - d < deep ? D - d : deep, row = row_group() * 4, column = lane() * 6;
#pragma unroll 2
    for (int k = 0; k < count; ++k) {
      const Float4 low = four_at(&tiles.rows[k][row]), high = four_at(&tiles.rows[k][row + seq_block / 2]);
      float b[6];
#pragma unroll
      for (int j = 0; j < 6; j += 2) std::memcpy(b + j, &tiles.columns[k][column + j], 8);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int j = 0; j < 6; ++j) {
          sums[e][j] = fmaf(low.v[e], b[j], sums[e][j]);
          sums[e + 4][j] = fmaf(high.v[e], b[j], sums[e + 4][j]);
        }
    }
  }
}

/// The weights of the thread's rows and columns become f(e, j): row_of(e), column_of(j).
template <class F>
TROUPE_DEVICE void put_weights(Tiles& tiles, F&& f) {
#pragma unroll
  for (int j = 0; j < 6; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Float4 four;
#pragma unroll
      for (int e = 0; e < 4; ++e) four.v[e] = f(h * 4 + e, j);
      *reinterpret_cast<Float4*>(&tiles.weights[column_of(j)][row_of(h * 4)]) = four;
    }
}

/// The weights of the thread's rows and columns become f(weight, e, j).
template <class F>
TROUPE_DEVICE void map_weights(Tiles& tiles, F&& f) {
#pragma unroll
  for (int j = 0; j < 6; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      auto* const at = reinterpret_cast<Float4*>(&tiles.weights[column_of(j)][row_of(h * 4)]);
      Float4 four = *at;
#pragma unroll
      for (int e = 0; e < 4; ++e) four.v[e] = f(four.v[e], h * 4 + e, j);
      *at = four;
    }
}

/// The columns of which a chain of times() is made, for each half of the thread's rows. On the diagonal that depends on
/// the panel of 12 rows.
struct Ends {
  int first[2], end[2];
  bool whole;  ///< every row has all columns
};

template <bool whole>
TROUPE_DEVICE void chain(const Tiles& tiles, int columns, const Ends& ends, float (&sums)[8][4]) {
  const int row = row_group() * 4, element = lane() * 4;
#pragma unroll 4
  for (int k = 0; k < columns; ++k) {
    const Float4 b = four_at(&tiles.factors[k][element]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!whole && (k < ends.first[h] || k >= ends.end[h])) continue;
      const Float4 a = four_at(&tiles.weights[k][row + h * (seq_block / 2)]);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[h * 4 + e][i] = fmaf(a.v[e], b.v[i], sums[h * 4 + e][i]);
    }
  }
}

/// sums[e][i] = the weights of row row_of(e) times elements d + 4 lane() + i of the columns, whose rows are `factors`:
/// one chain over the columns. `ends`: null where the chain has all columns. All threads call it.
TROUPE_DEVICE void times(Tiles& tiles, const Rows& factors, int d, int D, const Ends& ends, float (&sums)[8][4]) {
#pragma unroll
  for (int e = 0; e < 8; ++e)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[e][i] = 0;
  sync_block();
  const bool direct = D - d >= part && factors.aligned();
  constexpr int loads = seq_block * part / 4 / threads, columns_at_once = threads / 16;
  const float* from = factors.data + row_group() * factors.ld + d + lane() * 4;
#pragma unroll 4
  for (int i = 0; i < loads; ++i, from += columns_at_once * factors.ld) {
    const int column = row_group() + i * columns_at_once;
    Float4 four{};
    if (column < factors.count) four = direct ? four_at(from) : four_at(from, D - d - lane() * 4);
    *reinterpret_cast<Float4*>(&tiles.factors[column][lane() * 4]) = four;
  }
  sync_block();
  if (ends.whole) chain<true>(tiles, factors.count, ends, sums);
  else chain<false>(tiles, factors.count, ends, sums);
}

/// Stores row row_of(e) of `sums` at to + row_of(e) * ld + d + 4 lane(), for the first `count` rows and D elements.
template <int parts>
TROUPE_DEVICE void store(const float (&sums)[parts][8][4], float* to, int ld, int count, int d, int D) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(to + d) % 16 == 0 && ld % 4 == 0;
#pragma unroll
  for (int p = 0; p < parts; ++p)
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (row_of(e) >= count) continue;
      const int at = d + p * part + lane() * 4;
      float* const out = to + row_of(e) * ld + at;
      if (aligned && at + 4 <= D) {
        Float4 four;
        for (int i = 0; i < 4; ++i) four.v[i] = sums[p][e][i];
        *reinterpret_cast<Float4*>(out) = four;
      } else {
        for (int i = 0; i < 4; ++i)
          if (at + i < D) out[i] = sums[p][e][i];
      }
    }
}

/// The number of blocks of threads that share the elements of a head, and the parts that each has.
inline int shares(int D) { return static_cast<int>(ceil_div(D, most_parts * part)); }

/// Which block of threads this is: of shares x blocks of rows x heads, in this order, so that those which run together
/// read the same keys and values.
struct Place {
  int share, rows, head;
  TROUPE_DEVICE Place(int shares, int blocks_of_rows)
      : share(static_cast<int>(block_x()) % shares), rows(static_cast<int>(block_x()) / shares % blocks_of_rows),
        head(static_cast<int>(block_x()) / shares / blocks_of_rows) {}
};

TROUPE_DEVICE int positions_from(int first, int T) { return T - first < seq_block ? T - first : seq_block; }

/// Of rows that are queries: on the diagonal the chain ends behind the panel of 12 keys which has the row.
TROUPE_DEVICE Ends ends_of_queries(int keys, bool diagonal) {
  Ends ends{.whole = !diagonal};
  for (int h = 0; h < 2; ++h) {
    const int end = (row_of(h * 4) / panel_rows + 1) * panel_rows;
    ends.first[h] = 0, ends.end[h] = end < keys ? end : keys;
  }
  return ends;
}
/// Of rows that are keys: on the diagonal the chain begins at the panel of 12 queries which has the row.
TROUPE_DEVICE Ends ends_of_keys(int queries, bool diagonal) {
  Ends ends{.whole = !diagonal};
  for (int h = 0; h < 2; ++h) ends.first[h] = row_of(h * 4) / panel_rows * panel_rows, ends.end[h] = queries;
  return ends;
}

/// The sums of a block of columns are added to those before.
template <int parts>
TROUPE_DEVICE void add_part(float (&to)[parts][8][4], int p, const float (&sums)[8][4], bool first) {
#pragma unroll
  for (int e = 0; e < 8; ++e)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[p][e][i] = first ? sums[e][i] : to[p][e][i] + sums[e][i];
}

}  // namespace troupe::kernels::cuda::heads
