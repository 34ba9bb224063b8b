#include <algorithm>
#include <limits>
#include <utility>

#include "devices/cuda/cuda_device.h"
#include "devices/cuda/errors.h"
#include "devices/cuda/gpu.h"
#include "devices/host_memory.h"

namespace troupe {
namespace {

using cuda::Gpu;

constexpr std::size_t alignment = 4096;  // of the seam; the runtime promises 256

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(std::shared_ptr<Gpu> gpu, void* block, std::size_t size)
      : gpu_(std::move(gpu)), block_(block), size_(size) {
    const auto begin = reinterpret_cast<std::uintptr_t>(block);
    data_ = static_cast<std::byte*>(block) + ((begin + alignment - 1) / alignment * alignment - begin);
  }
  ~DeviceBuffer() override {
    static_cast<void>(gpu_->make_current());
    gpu_->worked(::cudaFree(block_), "cudaFree");
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  Space space() const override { return Space::device; }
  std::byte* data() override { return data_; }
  std::size_t size() const override { return size_; }

 private:
  const std::shared_ptr<Gpu> gpu_;
  void* const block_;
  std::byte* data_;
  const std::size_t size_;
};

/// Host memory that the driver has been told to keep in place.
class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(std::shared_ptr<Gpu> gpu, std::unique_ptr<Buffer> host) : gpu_(std::move(gpu)), host_(std::move(host)) {}
  ~PinnedBuffer() override {
    static_cast<void>(gpu_->make_current());
    gpu_->worked(::cudaHostUnregister(host_->data()), "cudaHostUnregister");
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  Space space() const override { return Space::pinned; }
  std::byte* data() override { return host_->data(); }
  std::size_t size() const override { return host_->size(); }

 private:
  const std::shared_ptr<Gpu> gpu_;
  const std::unique_ptr<Buffer> host_;
};

}  // namespace

Expected<std::unique_ptr<Buffer>> CudaDevice::allocate(std::size_t bytes) {
  Gpu& gpu = *gpu_;
  if (gpu.health.dead()) return gpu.health.cause();
  static_cast<void>(gpu.make_current());
  void* block = nullptr;
  cudaError_t error = cudaErrorMemoryAllocation;
  if (bytes <= std::numeric_limits<std::size_t>::max() - alignment) error = ::cudaMalloc(&block, bytes + alignment);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(::cudaGetLastError());  // or a stream's work would find it
    std::size_t free_bytes = 0, total_bytes = 0;
    gpu.worked(::cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    return cuda::no_memory("device memory of " + gpu.name, bytes, free_bytes, total_bytes);
  }
  if (!gpu.worked(error, "cudaMalloc")) return gpu.health.cause();
  auto buffer = std::make_unique<DeviceBuffer>(gpu_, block, bytes);
  // On a stream of its own: the others wait neither for the default stream nor for this one.
  if (!gpu.worked(::cudaMemsetAsync(block, 0, bytes + alignment, gpu.memory), "cudaMemsetAsync") ||
      !gpu.worked(::cudaStreamSynchronize(gpu.memory), "cudaStreamSynchronize"))
    return gpu.health.cause();
  return std::unique_ptr<Buffer>(std::move(buffer));
}

Expected<std::unique_ptr<Buffer>> CudaDevice::allocate_pinned(std::size_t bytes) {
  if (gpu_->health.dead()) return gpu_->health.cause();
  static_cast<void>(gpu_->make_current());
  TROUPE_ASSIGN(auto host, allocate_host(bytes));
  host->populate();
  const cudaError_t error = ::cudaHostRegister(host->data(), std::max<std::size_t>(bytes, 1), cudaHostRegisterPortable);
  if (error != cudaSuccess) {
    static_cast<void>(::cudaGetLastError());
    return cuda::status_of(error, "cudaHostRegister of " + std::to_string(bytes) + " bytes");
  }
  return std::unique_ptr<Buffer>(new PinnedBuffer(gpu_, std::move(host)));
}

Expected<std::shared_ptr<void>> CudaDevice::pin(std::byte* data, std::size_t bytes) {
  if (gpu_->health.dead()) return gpu_->health.cause();
  if (bytes == 0) return std::shared_ptr<void>();
  static_cast<void>(gpu_->make_current());
  const cudaError_t error = ::cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (error != cudaSuccess) {
    static_cast<void>(::cudaGetLastError());
    return cuda::status_of(error, "cudaHostRegister of " + std::to_string(bytes) + " bytes");
  }
  return std::shared_ptr<void>(data, [gpu = gpu_](void* pages) {
    if (gpu->make_current() == cudaSuccess) static_cast<void>(::cudaHostUnregister(pages));
  });
}

}  // namespace troupe
