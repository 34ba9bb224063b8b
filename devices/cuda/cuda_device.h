// CudaDevice: one NVIDIA GPU. Memory lies on the GPU; a stream issues work to a queue of it, some acts ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/device.h"

namespace troupe {

namespace cuda {
struct Gpu;
}

struct CudaOptions {
  int ordinal = 0;  ///< which GPU, of those that the driver shows to this process
  /// How many acts of a stream are in flight at most. With 1 the GPU waits for the host after each act (7.5 us); with 2
  /// it does not, and what is more only takes choices away from ReadyQueue.
  int depth = 2;
  /// How long quiesce waits for a GPU that does not end. An illegal access shows after 0.7 s.
  std::int64_t quiesce_budget_ns = 10'000'000'000;
  /// Ten times the compute capability that the process's kernels are compiled for (90: H100 and H200); 0: it has none.
  int architecture = 0;
};

/// Thread-safe. Streams, buffers and fences may outlive it. The first error of a launch, a copy or an event ends the
/// use of the GPU (Device::on_dead): a new process can use it at once.
class CudaDevice final : public Device {
 public:
  /// `clock` is in real time and outlives all that the device makes. Errors name what is missing, and say what to do:
  /// no driver, one too old, no GPU, none of this number, one of another architecture.
  static Expected<std::unique_ptr<CudaDevice>> open(const Clock& clock, CudaOptions options = {});
  /// The function of on_dead does not run any more.
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  /// "cuda:0 (NVIDIA H200)"
  const std::string& name() const;
  /// Memory of the GPU. It is freed with the buffer, which waits for all that the GPU does: not while a job computes.
  Expected<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  /// Pages of the host, taken and pinned at once (huge ones where the kernel grants them: 40 GB/s and more).
  Expected<std::unique_ptr<Buffer>> allocate_pinned(std::size_t bytes) override;
  /// Registers the pages until the result, and all that uses it, is gone.
  Expected<std::shared_ptr<void>> pin(std::byte* data, std::size_t bytes) override;
  /// Work has one thread, whatever `threads` says. A stream called "comm" goes before others where both have work that
  /// the GPU could begin.
  std::unique_ptr<Stream> create_stream(const std::string& name, int threads) override;
  std::shared_ptr<Fence> create_fence() override;
  void on_dead(std::function<void(Status)> f) override;

 private:
  explicit CudaDevice(std::shared_ptr<cuda::Gpu> gpu);
  const std::shared_ptr<cuda::Gpu> gpu_;
};

}  // namespace troupe
