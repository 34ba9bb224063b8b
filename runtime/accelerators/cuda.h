// Places that compute on NVIDIA GPUs (devices/cuda/).
#pragma once

#include "runtime/worker/accelerator.h"

namespace troupe::runtime {

/// Devices "cuda:0", "cuda:1", ...: the GPUs that the driver shows to the process.
Accelerator cuda_accelerator();

}  // namespace troupe::runtime
