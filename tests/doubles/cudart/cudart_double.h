// A double of the CUDA runtime, linked in its place: one GPU, in memory of this process. What is issued waits in its
// stream until a thread asks for an event, a stream or a synchronisation; then pieces that could run do so, one at a
// time, in an order that a seed draws. Its answers are those that a real runtime gave
// (docs/measurements/2026-11-26-gpu-facts.md, "What the runtime's double is to answer"); tests/cuda/runtime_test.cpp
// asks both.
//
//   - Device memory may be touched by device work only: the process ends by name where the host looks at it while no
//     device work runs. It holds garbage when it is given out, at addresses that are multiples of 256 and of nothing
//     more.
//   - Host functions run in a thread of their own, one at a time, as the driver's do: one that waits stops the others.
//   - A copy from or to pageable memory makes the host wait, and is counted.
//   - After an injected error nothing runs and every call answers it, those that free, too.
//
// Left out: the default stream, graphs, capture, several GPUs, peers. A call that the double does not know does not
// link.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace troupe::test::cudart {

struct Options {
  std::uint64_t seed = 1;
  int starve = -1;  ///< the stream of this number, in the order of creation, runs when no other can; -1: none
  std::size_t memory_bytes = std::size_t{256} << 20;
  int major = 9, minor = 0;               ///< compute capability
  cudaError_t count_error = cudaSuccess;  ///< what cudaGetDeviceCount answers
  int driver = 13000;                     ///< what cudaDriverGetVersion tells; 0: no driver
};

/// A machine that has just started. REQUIRES that no other thread calls the runtime.
void reset(Options options = {});
/// The n-th piece of device work from now (0: the next) fails with `error`.
void fail_after(std::int64_t n, cudaError_t error = cudaErrorIllegalAddress);
/// Issues a kernel: `kernel` runs as device work. REQUIRES that it calls nothing of the runtime.
void launch(cudaStream_t stream, std::function<void()> kernel);
/// The calling thread's last error becomes `error`, as where a launch is refused.
void refuse_launch(cudaError_t error);

struct Stats {
  std::int64_t pieces = 0;           ///< of device work that ran
  std::int64_t pageable_copies = 0;  ///< copies that made the host wait, or would make it
};
Stats stats();

/// What the process says, and its exit code, when the host touches device memory.
inline constexpr char touched[] = "cudart double: the host touched device memory\n";
inline constexpr int touched_exit = 86;

}  // namespace troupe::test::cudart
