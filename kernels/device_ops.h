// What a place on a device with memory of its own does with long vectors there, outside the graph of ops: what
// exact_sum.h, optimizer.h, square_sums.h and digest.h do in host memory, with the same bits. A place on the host's own
// processor needs none of it.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.h"
#include "kernels/op.h"
#include "kernels/optimizer.h"

namespace troupe::kernels {

/// Each function issues its work on `queue` (Parallel::queue) and returns; pointers are to memory of the device, or to
/// pinned host memory. Stateless, from any thread.
class DeviceOps {
 public:
  virtual ~DeviceOps() = default;
  /// Copies bytes between any two of the device's and the host's memory.
  virtual void copy(void* queue, void* to, const void* from, std::int64_t bytes) const = 0;
  /// The same for few bytes that the host waits for, from the device into pinned memory: past the queue of copies, in
  /// which a snapshot may be under way. REQUIRES: multiples of 4 bytes.
  virtual void land(void* queue, void* host, const void* from, std::int64_t bytes) const = 0;
  /// to[0, n) = value.
  virtual void fill(void* queue, float* to, float value, std::int64_t n) const = 0;
  /// x[i] *= by.
  virtual void multiply(void* queue, float* x, float by, std::int64_t n) const = 0;
  virtual void round_sums(void* queue, float* out, const Gradient& g, std::int64_t n) const = 0;
  virtual void row_square_sums(void* queue, const Gradient& g, std::int64_t rows, std::int64_t cols,
                               double* sums) const = 0;
  virtual void adamw_update(void* queue, const AdamWState& from, const AdamWState& to, const Gradient& g,
                            std::int64_t n, const AdamW& hyper) const = 0;
  /// words[0], words[1] = the digest of the view; words[2] = 0 where all of its f32 elements are finite.
  virtual void digest(void* queue, const View& view, std::uint64_t* words) const = 0;
};

}  // namespace troupe::kernels
