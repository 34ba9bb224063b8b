// DeviceOps of CUDA devices.
#pragma once

#include <memory>

#include "kernels/device_ops.h"

namespace troupe::kernels::cuda {

std::shared_ptr<const DeviceOps> device_ops();

}  // namespace troupe::kernels::cuda
