// A block of CUDA threads on one host thread: each thread is a fiber. The kernels of kernels/cuda/ are compiled by nvcc
// for a GPU and by any C++ compiler for these fibers, so that tests and sanitizers see the code that a GPU runs.
//
// Between two barriers, warps run one after the other, each as far as it can go, in an order that the seed chooses:
// what no barrier protects is seen in the wrong order by one seed or another. Shared memory has exactly the bytes that
// the launch asks for, NaN at first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace troupe::fibers {

/// A size or an index of a grid or block.
struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

/// How the threads of a launch take turns. 0: ascending; 1: descending; else drawn between any two barriers.
struct Order {
  std::uint64_t seed = 0;
};

struct Launch {
  Dim grid, block;
  std::size_t shared_bytes = 0;
  Order order;
};

/// What a kernel does that ends in garbage or not at all on a GPU: a barrier that a thread of the block never reaches,
/// two barriers at once, a collective of a warp whose mask leaves the caller out. what() names thread and block.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs the kernel `body` as each thread of the grid, block after block. Throws Error, and what the body throws.
void run_grid(const Launch& launch, const std::function<void()>& body);

// Of the running thread. REQUIRES that run_grid has called the caller.
Dim thread_index();
Dim block_index();
Dim block_size();
Dim grid_size();
std::byte* shared_memory();

/// __syncthreads. `where`: the barrier, which all threads of the block must agree on.
void sync_block(const void* where);
/// A collective of the lanes of `mask`: each brings `value`; returns what lane i brought at [i]. `orders`: it is a
/// barrier for memory too, as __syncwarp is and a shuffle is not.
const std::uint64_t* meet(const void* where, unsigned mask, std::uint64_t value, bool orders);

}  // namespace troupe::fibers
