#include "devices/cuda/gpu.h"

#include <utility>

#include "devices/cuda/errors.h"

namespace troupe::cuda {

Gpu::Gpu(const Clock& clock_, CudaOptions options_, std::string name_)
    : clock(clock_), options(options_), name(std::move(name_)),
      poller("cuda:" + std::to_string(options.ordinal) + " poller",
             [ordinal = options.ordinal] { static_cast<void>(::cudaSetDevice(ordinal)); }),
      health(name, poller) {
  if (!worked(make_current(), "cudaSetDevice")) return;
  worked(::cudaStreamCreateWithPriority(&memory, cudaStreamNonBlocking, 0), "cudaStreamCreateWithPriority");
}

Gpu::~Gpu() {
  static_cast<void>(make_current());
  if (memory) static_cast<void>(::cudaStreamDestroy(memory));  // a dead GPU refuses
}

bool Gpu::worked(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  health.report(status_of(error, call));
  return false;
}

Event Gpu::event(bool timed) {
  Event event;
  worked(events.take(timed, event), "cudaEventCreateWithFlags");
  return event;
}

}  // namespace troupe::cuda
