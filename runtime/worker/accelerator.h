// Accelerator: a kind of device with memory of its own on which places may compute, with what computes there. A program
// that is to use one links its library and registers it (App::accelerator): cuda_accelerator() of
// runtime/accelerators/cuda.h, fiber_accelerator() of runtime/accelerators/fibers.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "devices/device.h"
#include "kernels/device_ops.h"
#include "kernels/op.h"

namespace troupe::runtime {

struct Accelerator {
  std::string kind;  ///< "cuda": its devices are "cuda:0", "cuda:1", ...
  /// Device number `number`; -1: the one of place `place` where all places share this machine's devices in turn. Error:
  /// there is none, with what is missing and what to do.
  std::function<Expected<std::unique_ptr<Device>>(int number, int place, const Clock& clock)> open;
  /// The ops with their bodies for it.
  std::function<kernels::OpSet(const kernels::OpSet&)> with_bodies;
  std::shared_ptr<const kernels::DeviceOps> ops;
  /// Of devices whose work is done when it is issued: Parallel::queue in a simulation. Null: they cannot be simulated.
  void* simulated_queue = nullptr;
};

}  // namespace troupe::runtime
