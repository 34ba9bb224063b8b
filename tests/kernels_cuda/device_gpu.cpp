#include <cuda_runtime_api.h>

#include "device_memory.h"
#include "devices/base/check.h"

namespace troupe::test {

namespace {

void must(cudaError_t error) { REQUIRE(error == cudaSuccess, std::string(cudaGetErrorString(error))); }

class Gpu final : public Device {
 public:
  Gpu() {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    must(cudaMalloc(reinterpret_cast<void**>(&arena_), arena_bytes));
  }
  ~Gpu() override {
    cudaFree(arena_);
    cudaStreamDestroy(stream_);
  }
  std::byte* put(const void* host, std::size_t bytes, const void* like) override {
    std::byte* at = arena_ + used_ + reinterpret_cast<std::uintptr_t>(like) % 256;
    used_ += (reinterpret_cast<std::uintptr_t>(like) % 256 + bytes + 511) / 256 * 256;
    REQUIRE(used_ <= arena_bytes, used_);
    if (bytes > 0) must(cudaMemcpyAsync(at, host, bytes, cudaMemcpyHostToDevice, stream_));
    return at;
  }
  std::string wait() override {
    const cudaError_t launched = cudaGetLastError(), ran = cudaStreamSynchronize(stream_);
    if (launched != cudaSuccess) return cudaGetErrorString(launched);
    return ran == cudaSuccess ? std::string() : cudaGetErrorString(ran);
  }
  void get(void* host, const std::byte* device, std::size_t bytes) override {
    if (bytes > 0) must(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
  }
  void release() override { used_ = 0; }
  void* queue(std::size_t) override { return stream_; }
  std::size_t queues() const override { return 1; }

 private:
  static constexpr std::size_t arena_bytes = std::size_t{1} << 30;
  cudaStream_t stream_ = nullptr;
  std::byte* arena_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace

std::unique_ptr<Device> open_device(std::string& why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return std::make_unique<Gpu>();
  why = error == cudaSuccess ? "no GPU" : std::string("no GPU: ") + cudaGetErrorString(error);
  return nullptr;
}

}  // namespace troupe::test
