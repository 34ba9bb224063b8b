// What the cases of tests/cuda use. They are built twice: with the double of the runtime (TROUPE_CUDA_DOUBLE) and
// with the real one.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devices/base/clock.h"
#include "devices/cuda/cuda_device.h"
#if TROUPE_CUDA_DOUBLE
#include "tests/doubles/cudart/cudart_double.h"
#endif

namespace troupe::test {

inline constexpr bool is_double = TROUPE_CUDA_DOUBLE;

/// The double starts anew; the real GPU stays as it is.
void fresh(std::uint64_t seed = 1, int starve = -1);
/// The first GPU. Fails the test case where there is none.
std::unique_ptr<CudaDevice> open_gpu(const Clock& clock, CudaOptions options = {});
/// What lies at `from` on the GPU, by way of a stream of its own. Waits.
std::vector<std::uint8_t> read_device(const void* from, std::size_t bytes);

/// Opens once; what waits goes on.
class Gate {
 public:
  void open();
  void wait();
  bool is_open();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// Opens a gate at its end, also where a failed check leaves the test case.
struct OpensAtEnd {
  Gate& gate;
  ~OpensAtEnd() { gate.open(); }
};

/// What follows on the queue is done after the gate has opened. It stops the host functions of all queues meanwhile.
void hold(void* queue, Gate& gate);
void fill(void* queue, std::byte* to, int value, std::size_t bytes);
void copy(void* queue, void* to, const void* from, std::size_t bytes);

/// Runs `name` of victims.cpp in a new process.
struct Outcome {
  std::string said;    ///< on stdout and stderr
  int exit_code = -1;  ///< -1: a signal has ended it
  int end_signal = 0;
};
Outcome run_victim(const std::string& name);
/// The process is a victim: ends it.
[[noreturn]] void be_victim(const std::string& name);

}  // namespace troupe::test
