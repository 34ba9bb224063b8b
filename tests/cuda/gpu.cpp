#include "tests/cuda/gpu.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace troupe::test {

void fresh([[maybe_unused]] std::uint64_t seed, [[maybe_unused]] int starve) {
#if TROUPE_CUDA_DOUBLE
  cudart::reset({.seed = seed, .starve = starve});
#endif
}

std::unique_ptr<CudaDevice> open_gpu(const Clock& clock, CudaOptions options) {
  auto device = CudaDevice::open(clock, options);
  INFO(device.status().message());
  REQUIRE(device.ok());
  return *std::move(device);
}

std::vector<std::uint8_t> read_device(const void* from, std::size_t bytes) {
  void* pinned = nullptr;
  cudaStream_t stream = nullptr;
  REQUIRE(::cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault) == cudaSuccess);
  REQUIRE(::cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
  REQUIRE(::cudaMemcpyAsync(pinned, from, bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  REQUIRE(::cudaStreamSynchronize(stream) == cudaSuccess);
  std::vector<std::uint8_t> values(bytes);
  std::memcpy(values.data(), pinned, bytes);
  CHECK(::cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(::cudaFreeHost(pinned) == cudaSuccess);
  return values;
}

void Gate::open() {
  std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

void Gate::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return open_; });
}

bool Gate::is_open() {
  std::lock_guard lock(mutex_);
  return open_;
}

namespace {

/// In a thread of a stream: what doctest throws would end the process without a word. An injected error is the
/// stream's to find.
void expect(cudaError_t error, const char* call) {
  if (error == cudaSuccess || error == cudaErrorIllegalAddress) return;
  std::fprintf(stderr, "%s: %s\n", call, ::cudaGetErrorString(error));
  std::abort();
}

}  // namespace

void hold(void* queue, Gate& gate) {
  expect(::cudaLaunchHostFunc(
             static_cast<cudaStream_t>(queue), [](void* g) { static_cast<Gate*>(g)->wait(); }, &gate),
         "cudaLaunchHostFunc");
}

void fill(void* queue, std::byte* to, int value, std::size_t bytes) {
  expect(::cudaMemsetAsync(to, value, bytes, static_cast<cudaStream_t>(queue)), "cudaMemsetAsync");
}

void copy(void* queue, void* to, const void* from, std::size_t bytes) {
  expect(::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(queue)), "cudaMemcpyAsync");
}

Outcome run_victim(const std::string& name) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(ends[1], 1);
    ::dup2(ends[1], 2);
    ::execl("/proc/self/exe", "victim", "--victim", name.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  Outcome outcome;
  char chunk[256];
  for (ssize_t n; (n = ::read(ends[0], chunk, sizeof chunk)) > 0;)
    outcome.said.append(chunk, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.end_signal = WTERMSIG(status);
  return outcome;
}

}  // namespace troupe::test
