#include "devices/cuda/errors.h"

namespace troupe::cuda {
namespace {

/// 13000 is "13.0".
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string what_to_do(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver: {
      int driver = 0;
      if (::cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
      const std::string needs = ": this build needs one for CUDA " + version_text(CUDART_VERSION) + " or newer";
      return driver == 0 ? "no NVIDIA driver is loaded" + needs + "; nvidia-smi shows whether the machine has one"
                         : "the NVIDIA driver is for CUDA " + version_text(driver) + needs + "; update the driver";
    }
    case cudaErrorNoDevice:
      return "the NVIDIA driver shows no GPU to this process; look at nvidia-smi and at CUDA_VISIBLE_DEVICES";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
      return "the kernels of this build are not for this GPU or its driver; build for its architecture";
    case cudaErrorDevicesUnavailable:
      return "another process has the GPU for itself, or an earlier error has left it unusable; nvidia-smi shows which";
    case cudaErrorECCUncorrectable: return "the GPU's memory is defective there; restart the job without this GPU";
    default: return {};
  }
}

Code code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return Code::exhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable: return Code::unavailable;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion: return Code::invalid;
    default: return Code::internal;
  }
}

}  // namespace

Status status_of(cudaError_t error, const std::string& call) {
  if (error == cudaSuccess) return {};
  std::string text = call + ": " + ::cudaGetErrorName(error) + " (" + std::to_string(static_cast<int>(error)) +
                     "): " + ::cudaGetErrorString(error);
  if (const std::string advice = what_to_do(error); !advice.empty()) text += ": " + advice;
  return {code_of(error), text};
}

Status no_memory(const std::string& what, std::size_t bytes, std::size_t free_bytes, std::size_t total_bytes) {
  return {Code::exhausted, "cannot allocate " + std::to_string(bytes) + " bytes of the " + what + ": " +
                               std::to_string(free_bytes) + " of its " + std::to_string(total_bytes) +
                               " bytes are free"};
}

Status other_architecture(const std::string& gpu, int major, int minor, int architecture) {
  return {Code::invalid, gpu + " has compute capability " + std::to_string(major) + "." + std::to_string(minor) +
                             ", and the kernels of this build are for " + std::to_string(architecture / 10) + "." +
                             std::to_string(architecture % 10) +
                             ": build for this GPU, or run on another one (CUDA_VISIBLE_DEVICES)"};
}

}  // namespace troupe::cuda
