// How kernels cut their work: blocks whose boundaries are fixed by shape, and a workspace per thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "devices/device.h"

namespace troupe::kernels {

/// body(begin, end) over [0, n) in blocks of `block`; the number of threads decides only which thread runs a block.
template <class F>
void for_blocks(Parallel& par, std::int64_t n, std::int64_t block, F&& body) {
  if (n <= 0) return;
  par.for_each((n + block - 1) / block, [&](std::int64_t i) { body(i * block, std::min(n, (i + 1) * block)); });
}

/// Elements per block of elementwise kernels: 64 KiB of floats, whole vectors.
inline constexpr std::int64_t element_block = 16384;

/// At least `floats` floats, 64-byte aligned, garbage inside; valid until this thread's next call. Ends the process
/// where memory is short.
inline float* workspace(std::int64_t floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  static thread_local std::unique_ptr<float, Free> memory;
  static thread_local std::int64_t size = 0;
  if (size < floats) {
    memory.reset();
    size = (floats + 1023) / 1024 * 1024;
    memory.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(size) * sizeof(float))));
    if (!memory) std::abort();
  }
  return memory.get();
}

}  // namespace troupe::kernels
