// What the project expects of the CUDA runtime. The double claims it, and the real one is asked for the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/cuda/gpu.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::size_t n = 1 << 16;

#define OK(call) REQUIRE((call) == cudaSuccess)

/// Streams, device memory (two blocks) and pinned memory of one case.
struct Bench {
  cudaStream_t a = nullptr, b = nullptr;
  std::byte *device = nullptr, *other = nullptr;
  std::uint8_t *in = nullptr, *out = nullptr;
  std::vector<cudaEvent_t> events;

  explicit Bench(std::uint64_t seed = 1, int starve = -1) {
    fresh(seed, starve);
    OK(::cudaSetDevice(0));
    for (cudaStream_t* s : {&a, &b}) OK(::cudaStreamCreateWithPriority(s, cudaStreamNonBlocking, 0));
    for (std::byte** p : {&device, &other}) OK(::cudaMalloc(reinterpret_cast<void**>(p), n));
    for (std::uint8_t** p : {&in, &out}) OK(::cudaHostAlloc(reinterpret_cast<void**>(p), n, cudaHostAllocDefault));
    std::memset(in, 1, n);
    std::memset(out, 0, n);
  }
  ~Bench() {
    if (!a) return;
    for (const cudaEvent_t e : events) CHECK(::cudaEventDestroy(e) == cudaSuccess);
    for (void* p : {device, other}) CHECK(::cudaFree(p) == cudaSuccess);
    for (void* p : {in, out}) CHECK(::cudaFreeHost(p) == cudaSuccess);
    for (const cudaStream_t s : {a, b}) CHECK(::cudaStreamDestroy(s) == cudaSuccess);
  }
  /// What was there is gone.
  void forget() {
    a = b = nullptr;
    device = other = nullptr;
    in = out = nullptr;
    events.clear();
  }
  cudaEvent_t event(unsigned flags = cudaEventDisableTiming) {
    OK(::cudaEventCreateWithFlags(&events.emplace_back(), flags));
    return events.back();
  }
};

bool all(const std::uint8_t* values, std::uint8_t value) {
  return std::all_of(values, values + n, [&](std::uint8_t v) { return v == value; });
}

}  // namespace

TEST_CASE("runtime: the work of a stream is done in the order in which it was issued") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Bench t(seed);
    for (int round = 1; round <= 5; ++round) {
      OK(::cudaMemsetAsync(t.device, round, n, t.a));
      OK(::cudaMemcpyAsync(t.other, t.device, n, cudaMemcpyDeviceToDevice, t.a));
      OK(::cudaMemsetAsync(t.device, 99, n, t.a));
      OK(::cudaMemcpyAsync(t.out, t.other, n, cudaMemcpyDeviceToHost, t.a));
      OK(::cudaStreamSynchronize(t.a));
      REQUIRE(all(t.out, static_cast<std::uint8_t>(round)));
    }
  }
}

TEST_CASE("runtime: a stream waits for an event of another one, for the record that was asked for before the wait") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed)
    for (int starve : {-1, 0, 1}) {
      Bench t(seed, starve);
      const cudaEvent_t filled = t.event();
      Gate gate;
      OpensAtEnd opens{gate};
      hold(t.a, gate);
      OK(::cudaMemsetAsync(t.device, 5, n, t.a));
      OK(::cudaEventRecord(filled, t.a));
      OK(::cudaStreamWaitEvent(t.b, filled, 0));
      OK(::cudaMemcpyAsync(t.out, t.device, n, cudaMemcpyDeviceToHost, t.b));
      CHECK(::cudaStreamQuery(t.b) == cudaErrorNotReady);
      gate.open();
      OK(::cudaStreamSynchronize(t.b));
      REQUIRE(all(t.out, 5));
    }
}

TEST_CASE("runtime: an event that has no record, and an idle stream, are ready, and a wait for such an event passes") {
  Bench t;
  const cudaEvent_t event = t.event();
  CHECK(::cudaEventQuery(event) == cudaSuccess);
  CHECK(::cudaStreamQuery(t.a) == cudaSuccess);
  OK(::cudaStreamWaitEvent(t.a, event, 0));
  OK(::cudaStreamSynchronize(t.a));
}

TEST_CASE("runtime: an event is not ready until its last record is reached, and not-ready is no last error") {
  Bench t;
  const cudaEvent_t event = t.event();
  OK(::cudaEventRecord(event, t.a));
  OK(::cudaEventSynchronize(event));
  CHECK(::cudaEventQuery(event) == cudaSuccess);
  Gate gate;
  OpensAtEnd opens{gate};
  hold(t.a, gate);
  OK(::cudaEventRecord(event, t.a));
  for (int i = 0; i < 100; ++i) REQUIRE(::cudaEventQuery(event) == cudaErrorNotReady);
  CHECK(::cudaStreamQuery(t.a) == cudaErrorNotReady);
  CHECK(::cudaGetLastError() == cudaSuccess);
  gate.open();
  OK(::cudaEventSynchronize(event));
  CHECK(::cudaEventQuery(event) == cudaSuccess);
}

TEST_CASE("runtime: an event may be destroyed while a stream waits for it: the wait holds") {
  Bench t;
  cudaEvent_t filled = nullptr;
  OK(::cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
  Gate gate;
  OpensAtEnd opens{gate};
  hold(t.a, gate);
  OK(::cudaMemsetAsync(t.device, 6, n, t.a));
  OK(::cudaEventRecord(filled, t.a));
  OK(::cudaStreamWaitEvent(t.b, filled, 0));
  OK(::cudaEventDestroy(filled));
  OK(::cudaMemcpyAsync(t.out, t.device, n, cudaMemcpyDeviceToHost, t.b));
  CHECK(::cudaStreamQuery(t.b) == cudaErrorNotReady);
  gate.open();
  OK(::cudaStreamSynchronize(t.b));
  CHECK(all(t.out, 6));
}

TEST_CASE("runtime: an event that is recorded again holds no stream that waits for the record before") {
  Bench t;
  const cudaEvent_t event = t.event();
  OK(::cudaEventRecord(event, t.a));
  OK(::cudaStreamWaitEvent(t.b, event, 0));
  Gate gate;
  OpensAtEnd opens{gate};
  hold(t.a, gate);
  OK(::cudaEventRecord(event, t.a));
  OK(::cudaStreamSynchronize(t.b));  // would hang
  gate.open();
  OK(::cudaStreamSynchronize(t.a));
}

TEST_CASE("runtime: times between events are not negative, and those of a stream go up in its order") {
  Bench t;
  std::vector<cudaEvent_t> events;
  for (int i = 0; i < 6; ++i) {
    events.push_back(t.event(cudaEventDefault));
    OK(::cudaEventRecord(events.back(), t.a));
    OK(::cudaMemsetAsync(t.device, i, n, t.a));
  }
  OK(::cudaStreamSynchronize(t.a));
  float before = 0, ms = 0;
  for (const cudaEvent_t event : events) {
    OK(::cudaEventElapsedTime(&ms, events[0], event));
    CHECK(ms >= before);
    before = ms;
  }
  CHECK(before < 1000);
  OK(::cudaEventElapsedTime(&ms, events[5], events[0]));
  CHECK(ms == doctest::Approx(-before));
  const cudaEvent_t untimed = t.event();
  OK(::cudaEventRecord(untimed, t.a));
  OK(::cudaEventSynchronize(untimed));
  CHECK(::cudaEventElapsedTime(&ms, events[0], untimed) == cudaErrorInvalidResourceHandle);
  static_cast<void>(::cudaGetLastError());
}

TEST_CASE("runtime: a copy goes by its pointers where they are the device's and pinned, whatever its kind says") {
  Bench t;
  OK(::cudaMemcpyAsync(t.device, t.in, n, cudaMemcpyDeviceToHost, t.a));
  OK(::cudaMemcpyAsync(t.out, t.device, n, cudaMemcpyHostToDevice, t.a));
  OK(::cudaStreamSynchronize(t.a));
  CHECK(all(t.out, 1));
}

TEST_CASE("runtime: a copy is refused where pageable memory stands for the device's") {
  Bench t;
  std::vector<std::uint8_t> pageable(n);
  CHECK(::cudaMemcpyAsync(pageable.data(), t.in, n, cudaMemcpyHostToDevice, t.a) == cudaErrorInvalidValue);
  CHECK(::cudaMemcpyAsync(t.out, pageable.data(), n, cudaMemcpyDeviceToHost, t.a) == cudaErrorInvalidValue);
  CHECK(::cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(::cudaGetLastError() == cudaSuccess);
  OK(::cudaStreamSynchronize(t.a));  // the error is no sticky one
}

TEST_CASE("runtime: a copy to pageable memory makes the host wait, and the double counts it") {
  Bench t;
  std::vector<std::uint8_t> pageable(n);
  OK(::cudaMemsetAsync(t.device, 7, n, t.a));
  OK(::cudaMemcpyAsync(pageable.data(), t.device, n, cudaMemcpyDeviceToHost, t.a));
  CHECK(all(pageable.data(), 7));
  std::fill(pageable.begin(), pageable.end(), 8);
  OK(::cudaMemcpyAsync(t.device, pageable.data(), n, cudaMemcpyHostToDevice, t.a));
  std::fill(pageable.begin(), pageable.end(), 0);  // its bytes have been taken
  OK(::cudaMemcpyAsync(t.out, t.device, n, cudaMemcpyDeviceToHost, t.a));
  OK(::cudaStreamSynchronize(t.a));
  CHECK(all(t.out, 8));
#if TROUPE_CUDA_DOUBLE
  CHECK(cudart::stats().pageable_copies == 2);
#endif
}

TEST_CASE("runtime: host memory that is registered is pinned, at the same address, until it is unregistered") {
  Bench t;
  void* pages = ::aligned_alloc(4096, n);
  cudaPointerAttributes attributes;
  OK(::cudaPointerGetAttributes(&attributes, pages));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  OK(::cudaHostRegister(pages, n, cudaHostRegisterPortable));
  OK(::cudaPointerGetAttributes(&attributes, pages));
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(attributes.devicePointer == pages);
  CHECK(::cudaHostRegister(pages, n, cudaHostRegisterPortable) != cudaSuccess);
  OK(::cudaHostUnregister(pages));
  CHECK(::cudaHostUnregister(pages) != cudaSuccess);
  static_cast<void>(::cudaGetLastError());
  std::free(pages);
}

TEST_CASE("runtime: device memory says that it is, at multiples of 256") {
  Bench t;
  cudaPointerAttributes attributes;
  OK(::cudaPointerGetAttributes(&attributes, t.device));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(reinterpret_cast<std::uintptr_t>(t.device) % 256 == 0);
}

TEST_CASE("runtime: more memory than there is is refused, and nothing else is, from then on") {
  Bench t;
  std::size_t free_bytes = 0, total = 0;
  OK(::cudaMemGetInfo(&free_bytes, &total));
  CHECK(free_bytes <= total);
  void* block = nullptr;
  CHECK(::cudaMalloc(&block, total + 1) == cudaErrorMemoryAllocation);
  CHECK(::cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(::cudaGetLastError() == cudaSuccess);
  OK(::cudaMalloc(&block, 1));
  OK(::cudaFree(block));
}

TEST_CASE("runtime: a host function runs in its stream's order, and may not call the runtime") {
  Bench t;
  struct Seen {
    const std::uint8_t* out;
    bool filled = false;
    cudaError_t refused = cudaSuccess;
  } seen{t.out};
  OK(::cudaMemsetAsync(t.device, 3, n, t.a));
  OK(::cudaMemcpyAsync(t.out, t.device, n, cudaMemcpyDeviceToHost, t.a));
  OK(::cudaLaunchHostFunc(
      t.a,
      [](void* p) {
        auto& s = *static_cast<Seen*>(p);
        s.filled = all(s.out, 3);
        void* block = nullptr;
        s.refused = ::cudaMalloc(&block, 1);
      },
      &seen));
  OK(::cudaStreamSynchronize(t.a));
  CHECK(seen.filled);
  CHECK(seen.refused == cudaErrorNotPermitted);
}

TEST_CASE("runtime: a stream that is destroyed does what it was given, and its end makes the host not wait") {
  Bench t;
  cudaStream_t gone = nullptr;
  OK(::cudaStreamCreateWithPriority(&gone, cudaStreamNonBlocking, 0));
  Gate gate;
  OpensAtEnd opens{gate};
  const cudaEvent_t filled = t.event();
  hold(gone, gate);
  OK(::cudaMemsetAsync(t.device, 4, n, gone));
  OK(::cudaEventRecord(filled, gone));
  OK(::cudaStreamDestroy(gone));
  CHECK(::cudaEventQuery(filled) == cudaErrorNotReady);
  gate.open();
  OK(::cudaStreamWaitEvent(t.b, filled, 0));
  OK(::cudaMemcpyAsync(t.out, t.device, n, cudaMemcpyDeviceToHost, t.b));
  OK(::cudaStreamSynchronize(t.b));
  CHECK(all(t.out, 4));
}

#if TROUPE_CUDA_DOUBLE
// On the real runtime these need a kernel that fails: see the victim illegal_access.

TEST_CASE("runtime: after a sticky error nothing runs, every call answers it, and the last error is told once") {
  Bench t;
  const cudaEvent_t before = t.event();
  OK(::cudaEventRecord(before, t.a));
  OK(::cudaEventSynchronize(before));
  bool ran = false;
  cudart::fail_after(1, cudaErrorMisalignedAddress);
  OK(::cudaMemsetAsync(t.device, 1, n, t.a));
  cudart::launch(t.a, [&] { ran = true; });
  OK(::cudaLaunchHostFunc(
      t.a, [](void* r) { *static_cast<bool*>(r) = true; }, &ran));
  CHECK(::cudaStreamSynchronize(t.a) == cudaErrorMisalignedAddress);
  CHECK_FALSE(ran);
  CHECK(::cudaGetLastError() == cudaErrorMisalignedAddress);
  CHECK(::cudaGetLastError() == cudaSuccess);
  void* block = nullptr;
  std::size_t bytes = 0;
  CHECK(::cudaEventQuery(before) == cudaErrorMisalignedAddress);
  CHECK(::cudaStreamQuery(t.b) == cudaErrorMisalignedAddress);
  CHECK(::cudaEventRecord(before, t.b) == cudaErrorMisalignedAddress);
  CHECK(::cudaMalloc(&block, 1) == cudaErrorMisalignedAddress);
  CHECK(::cudaMemGetInfo(&bytes, &bytes) == cudaErrorMisalignedAddress);
  CHECK(::cudaFree(t.device) == cudaErrorMisalignedAddress);
  CHECK(::cudaHostAlloc(&block, 1, 0) == cudaErrorMisalignedAddress);
  CHECK(::cudaEventDestroy(before) == cudaErrorMisalignedAddress);
  fresh();
  t.forget();
}

TEST_CASE("double: an order of two streams that nothing states is both orders, of some seeds") {
  int right = 0, wrong = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Bench t(seed);
    OK(::cudaMemsetAsync(t.device, 0, n, t.a));
    OK(::cudaStreamSynchronize(t.a));
    OK(::cudaMemsetAsync(t.device, 5, n, t.a));
    OK(::cudaMemcpyAsync(t.out, t.device, n, cudaMemcpyDeviceToHost, t.b));  // no wait
    OK(::cudaStreamSynchronize(t.b));
    ++(all(t.out, 5) ? right : wrong);
  }
  CHECK(right >= 5);
  CHECK(wrong >= 5);
}
#endif
