#include "devices/cuda/cuda_device.h"

#include <utility>

#include "devices/cuda/cuda_stream.h"
#include "devices/cuda/errors.h"
#include "devices/cuda/fence.h"
#include "devices/cuda/gpu.h"

namespace troupe {

Expected<std::unique_ptr<CudaDevice>> CudaDevice::open(const Clock& clock, CudaOptions options) {
  int count = 0;
  if (const cudaError_t error = ::cudaGetDeviceCount(&count); error != cudaSuccess) {
    static_cast<void>(::cudaGetLastError());
    return cuda::status_of(error, "cudaGetDeviceCount");
  }
  const std::string place = "cuda:" + std::to_string(options.ordinal);
  if (options.ordinal < 0 || options.ordinal >= count)
    return invalid(place + " is not there: the NVIDIA driver shows " + std::to_string(count) +
                   (count == 1 ? " GPU" : " GPUs") + " to this process, numbered from 0 (CUDA_VISIBLE_DEVICES)");
  TROUPE_TRY(cuda::status_of(::cudaSetDevice(options.ordinal), "cudaSetDevice of " + place));
  cudaDeviceProp properties;
  TROUPE_TRY(cuda::status_of(::cudaGetDeviceProperties(&properties, options.ordinal), "cudaGetDeviceProperties"));
  const std::string name = place + " (" + properties.name + ")";
  if (options.architecture > 0 && properties.major * 10 + properties.minor != options.architecture)
    return cuda::other_architecture(name, properties.major, properties.minor, options.architecture);
  auto gpu = std::make_shared<cuda::Gpu>(clock, options, name);
  if (gpu->health.dead()) return gpu->health.cause();
  return std::unique_ptr<CudaDevice>(new CudaDevice(std::move(gpu)));
}

CudaDevice::CudaDevice(std::shared_ptr<cuda::Gpu> gpu) : gpu_(std::move(gpu)) {}

CudaDevice::~CudaDevice() { gpu_->health.forget(); }

const std::string& CudaDevice::name() const { return gpu_->name; }

std::unique_ptr<Stream> CudaDevice::create_stream(const std::string& name, int) {
  return std::make_unique<cuda::CudaStream>(name, gpu_);
}

std::shared_ptr<Fence> CudaDevice::create_fence() { return std::make_shared<cuda::CudaFence>(gpu_); }

void CudaDevice::on_dead(std::function<void(Status)> f) { gpu_->health.on_dead(std::move(f)); }

}  // namespace troupe
