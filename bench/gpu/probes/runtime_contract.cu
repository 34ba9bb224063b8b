// What the real CUDA runtime does where a double of it must decide: streams, events, host functions, copies, frees,
// capture, priorities, the depth of the launch queue, clocks. Each fact is one line; nothing is asserted.
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "fact.h"
#include "pipeline.h"

using namespace probe;

namespace {

__global__ void spin(std::uint64_t ns) {
  std::uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < ns);
}
__global__ void put(int* at, int value) { *at = value; }
__global__ void put_late(int* at, int value) { *at = value; }  // first launched while the device is busy
__global__ void scale_kernel(float* x, int n, float f) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= f;
}
void scale(CUstream_st* s, float* x, int n, float f) { scale_kernel<<<(n + 255) / 256, 256, 0, s>>>(x, n, f); }

constexpr double held_ms = 100;

/// Milliseconds that call() takes while `busy` is held by a kernel; the kernel ends after held_ms.
template <class F>
double while_held(cudaStream_t busy, F&& call) {
  Gate gate;
  CUDA(cudaDeviceSynchronize());
  gate.close(busy);
  std::atomic<bool> begun{false};
  std::thread opener([&] {
    while (!begun) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(held_ms));
    gate.open();
  });
  begun = true;
  const double begin = now_us();
  call();
  const double ms = (now_us() - begin) / 1e3;
  opener.join();
  CUDA(cudaDeviceSynchronize());
  (void)cudaGetLastError();
  return ms;
}
template <class F>
void waits(const char* what, cudaStream_t busy, F&& call) {
  cudaError_t e = cudaSuccess;
  const double ms = while_held(busy, [&] { e = call(); });
  fact(text("beside a held kernel: %s", what), text("%s after %.3f ms: %s", name_of(e).c_str(), ms,
                                                    ms > held_ms / 2 ? "WAITS for the kernel" : "returns at once"));
}

void queries() {
  const cudaStream_t a = new_stream(), b = new_stream();
  const cudaEvent_t e = new_event();
  int* there = pinned<int>(4);
  fact("query of an idle stream", name_of(cudaStreamQuery(a)));
  fact("query of an event never recorded", name_of(cudaEventQuery(e)));
  CUDA(cudaStreamWaitEvent(a, e, 0));
  put<<<1, 1, 0, a>>>(there, 1);
  fact("wait for an event never recorded",
       text("%s, and the work behind it runs", name_of(cudaStreamSynchronize(a)).c_str()));
  Gate gate;
  gate.close(a);
  CUDA(cudaEventRecord(e, a));
  (void)cudaGetLastError();
  fact("query of a busy stream", name_of(cudaStreamQuery(a)));
  fact("last error after that query", name_of(cudaPeekAtLastError()));
  fact("query of an event not reached", name_of(cudaEventQuery(e)));
  fact("last error after that query of an event", name_of(cudaPeekAtLastError()));
  (void)cudaGetLastError();
  gate.open();
  CUDA(cudaDeviceSynchronize());
  fact("query of an event reached", name_of(cudaEventQuery(e)));

  // A wait takes the record that is last when it is asked for; a later record does not move it.
  Gate first, second;
  there[0] = 0;
  first.close(a);
  CUDA(cudaEventRecord(e, a));
  CUDA(cudaStreamWaitEvent(b, e, 0));
  put<<<1, 1, 0, b>>>(there, 7);
  second.close(a);
  CUDA(cudaEventRecord(e, a));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int before = *static_cast<volatile int*>(there);
  first.open();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  fact("wait, then the event recorded again",
       text("before the first record is reached %d, after it %d (7: the wait took the first record); query of the "
            "event %s",
            before, *static_cast<volatile int*>(there), name_of(cudaEventQuery(e)).c_str()));
  second.open();
  CUDA(cudaDeviceSynchronize());
  (void)cudaGetLastError();

  // An event is destroyed while a wait for it is pending.
  there[1] = 0;
  cudaEvent_t gone = new_event();
  first.close(a);
  CUDA(cudaEventRecord(gone, a));
  CUDA(cudaStreamWaitEvent(b, gone, 0));
  put<<<1, 1, 0, b>>>(there + 1, 5);
  const cudaError_t destroyed = cudaEventDestroy(gone);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int early = static_cast<volatile int*>(there)[1];
  first.open();
  CUDA(cudaDeviceSynchronize());
  fact("event destroyed with a wait pending", text("%s; work behind the wait ran before the record %d, in the end %d",
                                                   name_of(destroyed).c_str(), early, there[1]));

  // A stream is destroyed with work pending.
  there[2] = 0;
  cudaStream_t brief = new_stream();
  first.close(brief);
  put<<<1, 1, 0, brief>>>(there + 2, 3);
  const double begin = now_us();
  const cudaError_t destroyed_stream = cudaStreamDestroy(brief);
  const double us = now_us() - begin;
  const int at_once = static_cast<volatile int*>(there)[2];
  first.open();
  CUDA(cudaDeviceSynchronize());
  fact("stream destroyed with work pending", text("%s after %.0f us, its work done then %d, in the end %d",
                                                  name_of(destroyed_stream).c_str(), us, at_once, there[2]));
  fact("query of a null event", name_of(cudaEventQuery(nullptr)));
  (void)cudaGetLastError();
}

struct HostCall {
  std::atomic<int> order{0}, released{0};
  int at[4] = {};
  std::thread::id thread[4];
  cudaError_t inside = cudaSuccess;
};
HostCall calls;

void host_functions() {
  const cudaStream_t a = new_stream(), b = new_stream();
  int* there = pinned<int>(2);
  there[0] = there[1] = 0;
  static int* seen = there;
  static int before = -1;
  put<<<1, 1, 0, a>>>(there, 1);
  CUDA(cudaLaunchHostFunc(
      a, [](void*) { before = static_cast<volatile int*>(seen)[0] * 10 + static_cast<volatile int*>(seen)[1]; },
      nullptr));
  put<<<1, 1, 0, a>>>(there + 1, 1);
  CUDA(cudaStreamSynchronize(a));
  fact("host function between two kernels of its stream",
       text("sees %s (10: the first has run, the second has not)", std::to_string(before).c_str()));
  CUDA(cudaLaunchHostFunc(
      a,
      [](void*) {
        void* p = nullptr;
        calls.inside = cudaMalloc(&p, 64);
      },
      nullptr));
  CUDA(cudaStreamSynchronize(a));
  fact("cudaMalloc inside a host function", name_of(calls.inside));
  CUDA(cudaLaunchHostFunc(
      a, [](void*) { calls.inside = cudaEventQuery(nullptr); }, nullptr));
  CUDA(cudaStreamSynchronize(a));
  fact("cudaEventQuery inside a host function", name_of(calls.inside));
  (void)cudaGetLastError();
  // Does a host function of one stream keep another stream's from running?
  CUDA(cudaLaunchHostFunc(
      a,
      [](void*) {
        calls.thread[0] = std::this_thread::get_id();
        const double begin = now_us();
        while (!calls.released && now_us() - begin < 200e3) std::this_thread::yield();
        calls.at[0] = ++calls.order;
      },
      nullptr));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CUDA(cudaLaunchHostFunc(
      b,
      [](void*) {
        calls.thread[1] = std::this_thread::get_id();
        calls.at[1] = ++calls.order;
        calls.released = 1;
      },
      nullptr));
  CUDA(cudaDeviceSynchronize());
  fact(
      "host functions of two streams",
      text(
          "the one that waits ended as number %d, the other as %d; threads %s (1 then 2: they run one after the other)",
          calls.at[0], calls.at[1], calls.thread[0] == calls.thread[1] ? "the same" : "different"));
  // A kernel of another stream while a host function runs.
  calls.released = 0;
  there[0] = 0;
  CUDA(cudaLaunchHostFunc(
      a,
      [](void*) {
        const double begin = now_us();
        while (!calls.released && now_us() - begin < 200e3) std::this_thread::yield();
      },
      nullptr));
  put<<<1, 1, 0, b>>>(there, 9);
  const cudaError_t e = cudaStreamSynchronize(b);
  const int value = there[0];
  calls.released = 1;
  CUDA(cudaDeviceSynchronize());
  fact("kernel of another stream beside a host function",
       text("%s, its value %d (9: it ran)", name_of(e).c_str(), value));
}

void copies_and_frees() {
  const cudaStream_t a = new_stream(), b = new_stream();
  const std::size_t small = 4096, middle = 65536, large = 16 << 20;
  char* device = on_device<char>(large);
  char* fixed = pinned<char>(large);
  std::vector<char> pageable(large, 1);
  for (const std::size_t n : {small, middle, large}) {
    const std::string kib = text("%zu KiB", n >> 10);
    waits(text("H2D of %s from pageable memory on the held stream", kib.c_str()).c_str(), a,
          [&] { return cudaMemcpyAsync(device, pageable.data(), n, cudaMemcpyHostToDevice, a); });
    waits(text("D2H of %s to pageable memory on the held stream", kib.c_str()).c_str(), a,
          [&] { return cudaMemcpyAsync(pageable.data(), device, n, cudaMemcpyDeviceToHost, a); });
  }
  waits("H2D of 16 MiB from pageable memory on another stream", a,
        [&] { return cudaMemcpyAsync(device, pageable.data(), large, cudaMemcpyHostToDevice, b); });
  waits("H2D of 16 MiB from pinned memory on the held stream", a,
        [&] { return cudaMemcpyAsync(device, fixed, large, cudaMemcpyHostToDevice, a); });
  waits("cudaMemsetAsync on the held stream", a, [&] { return cudaMemsetAsync(device, 0, large, a); });
  waits("cudaMemset (the legacy stream)", a, [&] { return cudaMemset(device, 0, large); });
  waits("cudaMemcpy of 4 KiB (the legacy stream)", a,
        [&] { return cudaMemcpy(device, pageable.data(), small, cudaMemcpyHostToDevice); });
  void* p = nullptr;
  waits("cudaMalloc", a, [&] { return cudaMalloc(&p, large); });
  waits("cudaFree", a, [&] { return cudaFree(p); });
  waits("cudaHostAlloc", a, [&] { return cudaHostAlloc(&p, large, 0); });
  waits("cudaFreeHost", a, [&] { return cudaFreeHost(p); });
  waits("cudaHostRegister", a, [&] { return cudaHostRegister(pageable.data(), large, 0); });
  waits("cudaHostUnregister", a, [&] { return cudaHostUnregister(pageable.data()); });
  cudaStream_t s = nullptr;
  waits("cudaStreamCreate", a, [&] { return cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); });
  waits("cudaStreamDestroy of an idle stream", a, [&] { return cudaStreamDestroy(s); });
  cudaEvent_t e = nullptr;
  waits("cudaEventCreate", a, [&] { return cudaEventCreate(&e); });
  waits("cudaEventDestroy", a, [&] { return cudaEventDestroy(e); });
  waits("first launch of a kernel, on another stream", a, [&] {
    put_late<<<1, 1, 0, b>>>(reinterpret_cast<int*>(device), 1);
    return cudaGetLastError();
  });
  waits("synchronize another, idle stream", a, [&] { return cudaStreamSynchronize(b); });
  std::size_t free = 0, total = 0;
  waits("cudaMemGetInfo", a, [&] { return cudaMemGetInfo(&free, &total); });

  // Directions that do not match the pointers.
  fact("copy 'host to device' whose source is device memory",
       name_of(cudaMemcpyAsync(device, device + 64, 64, cudaMemcpyHostToDevice, a)));
  (void)cudaGetLastError();
  fact("copy 'device to host' whose target is device memory",
       name_of(cudaMemcpyAsync(device, device + 64, 64, cudaMemcpyDeviceToHost, a)));
  (void)cudaGetLastError();
  fact("copy 'device to device' whose source is pinned",
       name_of(cudaMemcpyAsync(device, fixed, 64, cudaMemcpyDeviceToDevice, a)));
  (void)cudaGetLastError();
  fact("copy 'host to device' whose target is pageable",
       name_of(cudaMemcpyAsync(pageable.data(), fixed, 64, cudaMemcpyHostToDevice, a)));
  (void)cudaGetLastError();
  fact("copy 'device to device' whose source is pageable",
       name_of(cudaMemcpyAsync(device, pageable.data(), 64, cudaMemcpyDeviceToDevice, a)));
  (void)cudaGetLastError();
  CUDA(cudaDeviceSynchronize());
  fact("copy past the end of an allocation",
       name_of(cudaMemcpyAsync(device + large - 64, fixed, 128, cudaMemcpyHostToDevice, a)) + ", then synchronize " +
           name_of(cudaStreamSynchronize(a)));
  (void)cudaGetLastError();

  cudaPointerAttributes at{};
  for (const auto& [what, pointer] : std::initializer_list<std::pair<const char*, const void*>>{
           {"device", device}, {"pinned", fixed}, {"pageable", pageable.data()}, {"null", nullptr}}) {
    const cudaError_t r = cudaPointerGetAttributes(&at, pointer);
    fact(text("attributes of a %s pointer", what),
         text("%s, type %d (0 none, 1 host, 2 device, 3 managed)", name_of(r).c_str(), static_cast<int>(at.type)));
    (void)cudaGetLastError();
  }
  std::vector<double> us;
  for (int i = 0; i < 2000; ++i) {
    const double begin = now_us();
    (void)cudaPointerGetAttributes(&at, device + i);
    us.push_back(now_us() - begin);
  }
  fact("host time of cudaPointerGetAttributes", us, "us");

  std::size_t before = 0, after = 0;
  CUDA(cudaMemGetInfo(&before, &total));
  char* one = on_device<char>(1);
  CUDA(cudaMemGetInfo(&after, &total));
  char* two = on_device<char>(1);
  fact("cudaMalloc of 1 byte",
       text("takes %zu bytes; alignment %d; the next one lies %lld bytes on", before - after,
            static_cast<int>(reinterpret_cast<std::uintptr_t>(one) & 4095), static_cast<long long>(two - one)));
  CUDA(cudaMemGetInfo(&before, &total));
  const double begin = now_us();
  char* pool = on_device<char>(std::size_t{64} << 30);
  const double ms = (now_us() - begin) / 1e3;
  CUDA(cudaMemGetInfo(&after, &total));
  fact("cudaMalloc of 64 GiB",
       text("%.1f ms, takes %zu bytes more than asked for", ms, before - after - (std::size_t{64} << 30)));
  const auto fill = timed_ms(
      a, 3, [&](int) { CUDA(cudaMemsetAsync(pool, 0, std::size_t{64} << 30, a)); }, 1);
  fact("cudaMemsetAsync of 64 GiB", fill, "ms");
  CUDA(cudaFree(pool));
}

void missing_waits() {
  for (const int n : {256, 1 << 16, 1 << 22})
    for (int bug = 0; bug < 4; ++bug) {
      const int runs = n > 1 << 20 ? 30 : 200;
      int wrong = 0, error = 0;
      for (int i = 0; i < runs; ++i) {
        const Result r = pipeline(6, n, scale, bug);
        wrong += r.wrong != 0;
        if (r.error) error = r.error;
      }
      fact(text("pipeline of %d floats a chunk, missing wait %d", n, bug),
           text("%d of %d runs wrong, error %d", wrong, runs, error));
    }
}

void captures() {
  const cudaStream_t a = new_stream(), b = new_stream(), other = new_stream();
  int* device = on_device<int>(1024);
  int* fixed = pinned<int>(1024);
  static int pageable[1024];
  const cudaEvent_t e = new_event(), j = new_event(), outside = new_event();
  CUDA(cudaEventRecord(outside, other));
  const auto attempt = [&](const char* what, auto&& body) {
    for (const auto& [mode_name, mode] : std::initializer_list<std::pair<const char*, cudaStreamCaptureMode>>{
             {"global", cudaStreamCaptureModeGlobal},
             {"thread", cudaStreamCaptureModeThreadLocal},
             {"relaxed", cudaStreamCaptureModeRelaxed}}) {
      cudaGraph_t g = nullptr;
      CUDA(cudaStreamBeginCapture(a, mode));
      const cudaError_t inside = body();
      const cudaError_t end = cudaStreamEndCapture(a, &g);
      std::size_t nodes = 0;
      if (g) (void)cudaGraphGetNodes(g, nullptr, &nodes);
      fact(text("capture (%s): %s", mode_name, what),
           text("call %s, end %s, %zu nodes", name_of(inside).c_str(), name_of(end).c_str(), nodes));
      if (g) (void)cudaGraphDestroy(g);
      (void)cudaGetLastError();
      cudaStreamCaptureStatus status{};
      if (cudaStreamIsCapturing(b, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone)
        (void)cudaStreamEndCapture(b, &g);
      (void)cudaGetLastError();
      CUDA(cudaDeviceSynchronize());
    }
  };
  const auto launch = [&](cudaStream_t s) {
    put<<<1, 1, 0, s>>>(device, 1);
    return cudaGetLastError();
  };
  attempt("kernel, memset, pinned copy, host function", [&] {
    (void)launch(a);
    (void)cudaMemsetAsync(device, 0, 64, a);
    (void)cudaMemcpyAsync(fixed, device, 64, cudaMemcpyDeviceToHost, a);
    return cudaLaunchHostFunc(
        a, [](void*) {}, nullptr);
  });
  attempt("copy from pageable memory",
          [&] { return cudaMemcpyAsync(device, pageable, 64, cudaMemcpyHostToDevice, a); });
  attempt("fork to a second stream and join", [&] {
    (void)cudaEventRecord(e, a);
    (void)cudaStreamWaitEvent(b, e, 0);
    (void)launch(b);
    (void)cudaEventRecord(j, b);
    return cudaStreamWaitEvent(a, j, 0);
  });
  attempt("fork to a second stream, no join", [&] {
    (void)cudaEventRecord(e, a);
    (void)cudaStreamWaitEvent(b, e, 0);
    return launch(b);
  });
  attempt("wait for an event recorded outside", [&] { return cudaStreamWaitEvent(a, outside, 0); });
  attempt("record of an event as external", [&] { return cudaEventRecordWithFlags(e, a, cudaEventRecordExternal); });
  attempt("query of an event recorded inside", [&] {
    (void)cudaEventRecord(e, a);
    return cudaEventQuery(e);
  });
  attempt("query of an event recorded outside", [&] { return cudaEventQuery(outside); });
  attempt("query of the captured stream", [&] { return cudaStreamQuery(a); });
  attempt("query of another stream", [&] { return cudaStreamQuery(other); });
  attempt("synchronize another stream", [&] { return cudaStreamSynchronize(other); });
  attempt("synchronize the device", [&] { return cudaDeviceSynchronize(); });
  attempt("launch on another stream", [&] { return launch(other); });
  attempt("cudaMalloc", [&] {
    void* p = nullptr;
    return cudaMalloc(&p, 64);
  });
  attempt("cudaHostAlloc", [&] {
    void* p = nullptr;
    return cudaHostAlloc(&p, 64, 0);
  });
  attempt("cudaEventCreate", [&] {
    cudaEvent_t x = nullptr;
    return cudaEventCreate(&x);
  });
  const auto beside = [&](const char* what, auto&& call) {
    attempt(what, [&] {
      cudaError_t r = cudaSuccess;
      std::thread([&] { r = call(); }).join();
      return r;
    });
  };
  beside("another thread queries an event recorded outside", [&] { return cudaEventQuery(outside); });
  beside("another thread queries another stream", [&] { return cudaStreamQuery(other); });
  beside("another thread launches on another stream", [&] { return launch(other); });
  beside("another thread synchronizes another stream", [&] { return cudaStreamSynchronize(other); });
  beside("another thread calls cudaMalloc", [&] {
    void* p = nullptr;
    return cudaMalloc(&p, 64);
  });
  beside("another thread records an event on another stream", [&] { return cudaEventRecord(outside, other); });
  beside("another thread launches on the captured stream", [&] { return launch(a); });

  // Capturing runs nothing; a launch of the graph does.
  device = pinned<int>(1);
  *device = 0;
  cudaGraph_t g = nullptr;
  CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  put<<<1, 1, 0, a>>>(device, 4);
  CUDA(cudaStreamEndCapture(a, &g));
  CUDA(cudaDeviceSynchronize());
  const int captured = *device;
  cudaGraphExec_t x = nullptr;
  CUDA(cudaGraphInstantiate(&x, g, 0));
  CUDA(cudaGraphLaunch(x, a));
  CUDA(cudaStreamSynchronize(a));
  fact("a captured kernel",
       text("after the capture %d, after the launch of its graph %d (0, 4: only the launch runs it)", captured,
            *device));
}

__global__ void busy_blocks(std::uint64_t ns) {
  const std::uint64_t begin = clock64();
  while (clock64() - begin < ns) {}
}

void priorities() {
  int least = 0, greatest = 0;
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  int* there = pinned<int>(1);
  for (const auto& [what, low, high] :
       {std::tuple{"same priority", 0, 0}, std::tuple{"high priority beside low", least, greatest}}) {
    const cudaStream_t l = new_stream(low), h = new_stream(high);
    std::vector<double> us;
    for (int i = 0; i < 20; ++i) {
      busy_blocks<<<132 * 16 * 4, 1024, 0, l>>>(200'000);  // blocks of 0.1 ms, many waves of them
      const double begin = now_us();
      while (now_us() - begin < 200) {}
      const double asked = now_us();
      put<<<1, 1, 0, h>>>(there, i);
      CUDA(cudaStreamSynchronize(h));
      us.push_back(now_us() - asked);
      CUDA(cudaStreamSynchronize(l));
    }
    fact(text("time of a small kernel beside one of many blocks, %s", what), us, "us");
  }
}

void queue_depth() {
  const cudaStream_t a = new_stream();
  int* device = on_device<int>(1);
  for (int streams = 1; streams <= 4; streams *= 4) {
    Gate gate;
    std::vector<cudaStream_t> all{a};
    while (static_cast<int>(all.size()) < streams) all.push_back(new_stream());
    CUDA(cudaDeviceSynchronize());
    for (auto s : all) gate.close(s, 2'000'000'000);
    int n = 0;
    std::atomic<bool> stuck{false}, done{false};
    std::atomic<double> last{now_us()};
    std::thread watch([&] {
      while (!done) {
        if (now_us() - last > 50e3) {
          stuck = true;
          gate.open();
          return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
    for (; n < 200'000 && !stuck; ++n) {
      put<<<1, 1, 0, all[static_cast<std::size_t>(n) % all.size()]>>>(device, n);
      last = now_us();
    }
    done = true;
    watch.join();
    gate.open();
    CUDA(cudaDeviceSynchronize());
    fact(text("launches on %d held stream(s) before the host waits", streams), stuck ? n - 1 : n, "launches");
  }
}

void clocks() {
  const cudaStream_t a = new_stream();
  const cudaEvent_t zero = new_event(0), end = new_event(0);
  // Offset of the device's clock against the host's, by the shortest of some round trips, twice, five seconds apart.
  const auto offset = [&](double* spread) {
    double best = 1e9, at = 0;
    for (int i = 0; i < 200; ++i) {
      const double begin = now_us();
      CUDA(cudaEventRecord(end, a));
      while (cudaEventQuery(end) == cudaErrorNotReady) {}
      const double stop = now_us();
      if (stop - begin < best) {
        best = stop - begin;
        at = (begin + stop) / 2 - elapsed_ms(zero, end) * 1e3;
      }
    }
    *spread = best;
    return at;
  };
  CUDA(cudaEventRecord(zero, a));
  CUDA(cudaEventSynchronize(zero));
  double spread = 0, later_spread = 0;
  const double first = offset(&spread), begin = now_us();
  std::this_thread::sleep_for(std::chrono::seconds(4));
  const double second = offset(&later_spread);
  fact("shortest record and query of an event, round trip", spread, "us");
  fact("drift of the events' clock against the host's", (second - first) / (now_us() - begin) * 1e6, "ppm");
  // Resolution: differences of events about a short kernel.
  std::vector<double> us;
  for (int i = 0; i < 400; ++i) {
    CUDA(cudaEventRecord(zero, a));
    spin<<<1, 1, 0, a>>>(static_cast<std::uint64_t>(i) * 10);
    CUDA(cudaEventRecord(end, a));
    CUDA(cudaEventSynchronize(end));
    us.push_back(elapsed_ms(zero, end) * 1e3);
  }
  std::sort(us.begin(), us.end());
  double step = 1e9;
  for (std::size_t i = 1; i < us.size(); ++i)
    if (us[i] - us[i - 1] > 1e-4) step = std::fmin(step, us[i] - us[i - 1]);
  fact("smallest difference of two event times", step, "us");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const auto step = [&](const char* name, void (*f)()) {
    if (only.empty() || only == name) f();
  };
  CUDA(cudaSetDevice(0));
  step("queries", queries);
  step("host_functions", host_functions);
  step("copies", copies_and_frees);
  step("clocks", clocks);
  step("priorities", priorities);
  step("queue_depth", queue_depth);
  step("missing_waits", missing_waits);
  step("captures", captures);
}
