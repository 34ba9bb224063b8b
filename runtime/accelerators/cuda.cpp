#include "runtime/accelerators/cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "actors/device_side.h"
#include "devices/cuda/cuda_device.h"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/device_ops.h"

namespace troupe::runtime {

Accelerator cuda_accelerator() {
  return {"cuda",
          [](int number, int place, const Clock& clock) -> Expected<std::unique_ptr<Device>> {
            CudaOptions options;
            int count = 0;
            if (number < 0 && ::cudaGetDeviceCount(&count) != cudaSuccess) count = 1;  // open() says what is wrong
            options.ordinal = number >= 0 ? number : place % std::max(count, 1);
            options.architecture = TROUPE_CUDA_ARCHITECTURE;
            static_assert(CudaOptions{}.depth < actors::DeviceSide::acts);
            TROUPE_ASSIGN(auto device, CudaDevice::open(clock, options));
            return std::unique_ptr<Device>(std::move(device));
          },
          kernels::cuda::with_cuda_bodies, kernels::cuda::device_ops()};
}

}  // namespace troupe::runtime
