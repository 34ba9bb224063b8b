// Inputs and shapes of the kernels with planted bugs (fibers/kernels.cuh): the same for the fibers and for the GPU.
#pragma once

#include <cstdint>
#include <vector>

namespace planted {

inline constexpr int rms_rows = 64, rms_cols = 2048, transpose_rows = 70, transpose_cols = 45, M = 32, N = 24, K = 64,
                     scan_blocks = 16;

/// About N(0, 1): a sum of four uniform numbers, of 8 bits each so that products in bf16 have few bits.
inline std::vector<float> values(std::size_t n, std::uint64_t seed) {
  std::vector<float> v(n);
  for (auto& x : v) {
    x = 0;
    for (int i = 0; i < 4; ++i) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      x += static_cast<float>(seed >> 40) * 0x1p-24f - 0.5f;
    }
    x *= 1.7320508f;
  }
  return v;
}

struct Outputs {
  std::vector<std::uint16_t> y;  // RMSNorm
  std::vector<float> rstd, transposed, product, scanned;
};

}  // namespace planted
