// Gpu: what the streams, buffers and fences of one GPU share. They may outlive their CudaDevice.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "devices/base/clock.h"
#include "devices/base/status.h"
#include "devices/cuda/cuda_device.h"
#include "devices/cuda/events.h"
#include "devices/cuda/health.h"
#include "devices/cuda/poller.h"

namespace troupe::cuda {

struct Gpu {
  /// REQUIRES that the GPU is there. `name`: "cuda:0 (NVIDIA H200)" say.
  Gpu(const Clock& clock_, CudaOptions options_, std::string name_);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// Calls of the calling thread go to this GPU from now on.
  cudaError_t make_current() const { return ::cudaSetDevice(options.ordinal); }
  /// Whether `call`, which returned `error`, has worked; where it has not, the GPU is dead.
  bool worked(cudaError_t error, const char* call);
  /// An event of this GPU; none where the GPU is dead.
  Event event(bool timed);

  const Clock& clock;
  const CudaOptions options;
  const std::string name;
  Poller poller;
  Health health;
  EventPool events;
  cudaStream_t memory = nullptr;  ///< zeroes what is allocated
};

}  // namespace troupe::cuda
