// How a body of this folder issues its kernels: on the CUDA stream of the call, or at once on fibers. Errors of a
// launch are the stream's to find (devices/cuda/): a body has none to return.
#pragma once

#include <algorithm>

#include "kernels/cuda/prelude.cuh"
#include "kernels/op.h"

namespace troupe::kernels::cuda {

/// Blocks of a grid, threads of a block, bytes of shared memory.
struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
  int threads = 256;
  std::size_t shared_bytes = 0;
};

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Issues kernel(arguments...) on `queue` (Call::queue); nothing where the grid is empty. REQUIRES at most 2^31 - 1
/// blocks along x and 65,535 along y and z.
template <class... P, class... A>
void launch(void* queue, const Grid& grid, void (*kernel)(P...), A... arguments) {
  if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0) return;
  const auto x = static_cast<unsigned>(grid.x), y = static_cast<unsigned>(grid.y), z = static_cast<unsigned>(grid.z);
#if defined(__CUDACC__)
  if (grid.shared_bytes > 48 * 1024)
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(grid.shared_bytes));
  kernel<<<dim3(x, y, z), dim3(static_cast<unsigned>(grid.threads)), grid.shared_bytes,
           static_cast<cudaStream_t>(queue)>>>(static_cast<P>(arguments)...);
#else
  const auto* order = static_cast<const fibers::Order*>(queue);
  fibers::run_grid(
      {{x, y, z}, {static_cast<unsigned>(grid.threads), 1, 1}, grid.shared_bytes, order ? *order : fibers::Order{}},
      [=] { kernel(static_cast<P>(arguments)...); });
#endif
}

/// Sets `bytes` bytes to zero.
inline void clear(void* queue, void* to, std::int64_t bytes) {
#if defined(__CUDACC__)
  cudaMemsetAsync(to, 0, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(queue));
#else
  (void)queue;
  std::memset(to, 0, static_cast<std::size_t>(bytes));
#endif
}
/// Copies `bytes` bytes of device memory.
inline void copy(void* queue, void* to, const void* from, std::int64_t bytes) {
#if defined(__CUDACC__)
  cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                  static_cast<cudaStream_t>(queue));
#else
  (void)queue;
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
#endif
}

}  // namespace troupe::kernels::cuda
