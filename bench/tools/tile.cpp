#include "bench/tools/tile.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/micro.h"

namespace troupe::bench {
namespace {

using namespace kernels::simd;
using Clock = std::chrono::steady_clock;

/// Seconds of one tile with k of this length: the best of many rounds.
double seconds(std::int64_t kc) {
  constexpr int rounds = 60, tiles = 500;
  // Each part is a multiple of 64 bytes long, as in gemm.cpp.
  float* const a = kernels::workspace((panel_rows + panel_cols) * kc + panel_rows * panel_cols);
  float* const b = a + panel_rows * kc;
  float* const c = b + panel_cols * kc;
  std::fill(a, b, 0.5f);
  std::fill(b, c, 0.25f);
  const FloatTile to{c, panel_cols, panel_cols, false};
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < tiles; ++i) {
      tile_of<1, panel_rows>(panel_rows, kc, a, b, to);
      asm volatile("" : : "r"(c) : "memory");  // what the tile stored is wanted: no call may be left out
    }
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count() / tiles);
  }
  return best;
}

}  // namespace

double tile_gflops() {
  double best = 0;
  for (const std::int64_t kc : {128, 256, 384, 512})
    best = std::max(best, 2e-9 * static_cast<double>(panel_rows * panel_cols * kc) / seconds(kc));
  return best;
}

}  // namespace troupe::bench
