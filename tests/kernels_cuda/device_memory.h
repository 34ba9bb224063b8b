// Where the tests of CUDA bodies run them: a GPU, or fibers on this processor. device_fibers.cpp and device_gpu.cpp
// implement it; each binary of tests links one of them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace troupe::test {

class Device {
 public:
  virtual ~Device() = default;
  /// A copy in device memory, at an address with the same remainder by 256 as `like`, of exactly so many bytes. Lives
  /// until release().
  virtual std::byte* put(const void* host, std::size_t bytes, const void* like) = 0;
  /// Waits for all work. Error: what went wrong with it since the last call; empty: nothing.
  virtual std::string wait() = 0;
  virtual void get(void* host, const std::byte* device, std::size_t bytes) = 0;
  virtual void release() = 0;
  /// Call::queue, and how many queues there are to be tried: on fibers, each has another order of threads.
  virtual void* queue(std::size_t i) = 0;
  virtual std::size_t queues() const = 0;
};

/// Null: there is none, and `why` says what is missing.
std::unique_ptr<Device> open_device(std::string& why);

}  // namespace troupe::test
