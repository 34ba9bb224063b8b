#include "runtime/accelerators/fibers.h"

#include "devices/fibers/fiber_device.h"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/device_ops.h"

namespace troupe::runtime {

Accelerator fiber_accelerator() {
  static fibers::Order in_simulations;
  return {"cuda",
          [](int, int, const Clock& clock) -> Expected<std::unique_ptr<Device>> {
            return std::unique_ptr<Device>(std::make_unique<fibers::FiberDevice>(clock));
          },
          kernels::cuda::with_cuda_bodies, kernels::cuda::device_ops(), &in_simulations};
}

}  // namespace troupe::runtime
