// What the CUDA runtime reports, as Status: the call, the error's name and number, its text, and what to do where
// that is known.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "devices/base/status.h"

namespace troupe::cuda {

/// Ok for cudaSuccess. `call`: what returned it, "cudaEventQuery" say. Asks the runtime for nothing but texts and
/// versions.
Status status_of(cudaError_t error, const std::string& call);
/// `bytes` of memory were asked for and not given. `what`: "device memory of cuda:0 (NVIDIA H200)" say.
Status no_memory(const std::string& what, std::size_t bytes, std::size_t free_bytes, std::size_t total_bytes);
/// A GPU of compute capability major.minor cannot run kernels for `architecture` (90: H100 and H200).
Status other_architecture(const std::string& gpu, int major, int minor, int architecture);

}  // namespace troupe::cuda
