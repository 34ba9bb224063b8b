// A CUDA body in the place of a CPU body: tests call it as they call the CPU's, in host memory.
#pragma once

#include "device_memory.h"
#include "kernels/op.h"

namespace troupe::kernels {

/// The device of this binary; null: the running test case has been skipped (tests/skip.h).
test::Device* device();

/// The op whose `cpu` copies the call's memory to the device, runs OpDef::cuda there on queue `queue`, and copies
/// outputs and state back. It fails the test case where the device reports an error, or an input has changed.
OpDef on_device(const OpDef& op, test::Device& device, std::size_t queue = 0);

}  // namespace troupe::kernels
