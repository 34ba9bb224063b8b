// Places that compute on fibers as they would on a GPU (devices/fibers/): for tests, on any machine.
#pragma once

#include "runtime/worker/accelerator.h"

namespace troupe::runtime {

/// Its kind is "cuda": what a program does there it does on a GPU.
Accelerator fiber_accelerator();

}  // namespace troupe::runtime
