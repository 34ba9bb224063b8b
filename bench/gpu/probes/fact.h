// What every probe shares: one line of JSON for each fact, quantiles, checks of return codes, a gate that holds a
// stream.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace probe {

inline std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == '"' || c == '\\') (out += '\\') += c;
    else out += c == '\n' ? ' ' : c;
  return out;
}

/// A fact that is one number.
inline void fact(const std::string& name, double value, const char* unit) {
  std::printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", escaped(name).c_str(), value, unit);
  std::fflush(stdout);
}
/// A fact that is text.
inline void fact(const std::string& name, const std::string& value) {
  std::printf("{\"name\": \"%s\", \"value\": \"%s\"}\n", escaped(name).c_str(), escaped(value).c_str());
  std::fflush(stdout);
}
/// The median of samples, with the 1st and 99th of their hundred quantiles.
inline void fact(const std::string& name, std::vector<double> samples, const char* unit) {
  if (samples.empty()) return fact(name, "no samples");
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double q) {
    return samples[static_cast<std::size_t>(q * static_cast<double>(samples.size() - 1))];
  };
  std::printf(
      "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"n\": %zu, \"p1\": %.6g, \"p50\": %.6g, \"p99\": %.6g, "
      "\"max\": %.6g}\n",
      escaped(name).c_str(), at(0.5), unit, samples.size(), at(0.01), at(0.5), at(0.99), samples.back());
  std::fflush(stdout);
}

inline std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline std::string text(const char* format, ...) {
  char buffer[4096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

inline std::string name_of(cudaError_t e) { return text("%d %s", static_cast<int>(e), cudaGetErrorName(e)); }

inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Ends the probe where a call fails that no fact is about.
inline void check(cudaError_t e, const char* call, int line) {
  if (e == cudaSuccess) return;
  fact("failed", text("%s at line %d: %s", call, line, name_of(e).c_str()));
  std::exit(1);
}
#define CUDA(call) ::probe::check((call), #call, __LINE__)

inline double elapsed_ms(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  CUDA(cudaEventElapsedTime(&ms, begin, end));
  return ms;
}

/// Milliseconds of each of n calls of work(i) on `stream`, by events; `warm` calls before them are left out.
template <class F>
std::vector<double> timed_ms(cudaStream_t stream, int n, F&& work, int warm = 3) {
  std::vector<cudaEvent_t> events(static_cast<std::size_t>(n) + 1);
  for (auto& e : events) CUDA(cudaEventCreate(&e));
  for (int i = 0; i < warm; ++i) work(i);
  CUDA(cudaEventRecord(events[0], stream));
  for (int i = 0; i < n; ++i) {
    work(i);
    CUDA(cudaEventRecord(events[static_cast<std::size_t>(i) + 1], stream));
  }
  CUDA(cudaEventSynchronize(events.back()));
  std::vector<double> ms;
  for (int i = 0; i < n; ++i)
    ms.push_back(elapsed_ms(events[static_cast<std::size_t>(i)], events[static_cast<std::size_t>(i) + 1]));
  for (auto e : events) CUDA(cudaEventDestroy(e));
  return ms;
}

inline double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples.empty() ? 0 : samples[samples.size() / 2];
}

inline cudaStream_t new_stream(int priority = 0) {
  cudaStream_t s = nullptr;
  CUDA(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, priority));
  return s;
}
inline cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t e = nullptr;
  CUDA(cudaEventCreateWithFlags(&e, flags));
  return e;
}
template <class T>
T* on_device(std::size_t n) {
  void* p = nullptr;
  CUDA(cudaMalloc(&p, n * sizeof(T)));
  return static_cast<T*>(p);
}
/// Pinned memory that host and device see at one address.
template <class T>
T* pinned(std::size_t n) {
  void* p = nullptr;
  CUDA(cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocMapped));
  return static_cast<T*>(p);
}

#if defined(__CUDACC__)
/// Waits until the host opens the gate, or for `limit_ns`, so that a wrong probe ends too.
static __global__ void gate_kernel(const volatile int* open, std::uint64_t limit_ns) {
  std::uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  while (*open == 0) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - begin > limit_ns) break;
  }
}
/// Holds a stream until the host opens it.
class Gate {
 public:
  Gate() : open_(pinned<int>(1)) { *open_ = 0; }
  Gate(const Gate&) = delete;
  ~Gate() { cudaFreeHost(const_cast<int*>(open_)); }
  void close(cudaStream_t s, std::uint64_t limit_ns = 3'000'000'000) {
    *open_ = 0;
    gate_kernel<<<1, 1, 0, s>>>(open_, limit_ns);
    CUDA(cudaGetLastError());
  }
  void open() { *open_ = 1; }

 private:
  volatile int* open_;
};
#endif

}  // namespace probe
