// Latencies that decide how streams meet: what a launch costs the host, how soon the host sees the end of a kernel, and
// the gap between two dependent kernels on one stream, on two streams by an event, in a graph, and by way of the host.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "fact.h"

using namespace probe;

namespace {

__global__ void empty() {}
struct Large {
  char bytes[1024];
};
__global__ void with_arguments(Large) {}
__global__ void spin(std::uint64_t ns) {
  std::uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < ns);
}
__global__ void flag(volatile int* at, int value, std::uint64_t ns) {
  std::uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < ns);
  *at = value;
  __threadfence_system();
}
/// About `turns` of arithmetic on all multiprocessors.
__global__ void work(float* x, int turns) {
  float v = x[threadIdx.x];
  for (int i = 0; i < turns; ++i) v = v * 0.999f + 0.001f;
  if (v == 12345.0f) x[threadIdx.x] = v;
}

template <class F>
std::vector<double> host_us(int n, F&& call, cudaStream_t s, int drain = 64) {
  std::vector<double> us;
  for (int i = 0; i < n + 100; ++i) {
    const double begin = now_us();
    call(i);
    const double t = now_us() - begin;
    if (i >= 100) us.push_back(t);
    if (i % drain == drain - 1) CUDA(cudaStreamSynchronize(s));
  }
  CUDA(cudaStreamSynchronize(s));
  return us;
}

void host_costs() {
  const cudaStream_t s = new_stream(), t = new_stream();
  const cudaEvent_t e = new_event(), timing = new_event(0);
  int *device = on_device<int>(1024), *fixed = pinned<int>(1024);
  constexpr int n = 5000;
  fact("host time of a launch",
       host_us(
           n, [&](int) { empty<<<1, 32, 0, s>>>(); }, s),
       "us");
  fact("host time of a launch with 1 KiB of arguments",
       host_us(
           n, [&](int) { with_arguments<<<1, 32, 0, s>>>(Large{}); }, s),
       "us");
  fact("host time of a launch on alternating streams",
       host_us(
           n, [&](int i) { empty<<<1, 32, 0, i % 2 ? s : t>>>(); }, s),
       "us");
  fact("host time of cudaEventRecord",
       host_us(
           n, [&](int) { CUDA(cudaEventRecord(e, s)); }, s),
       "us");
  fact("host time of cudaEventRecord with timing",
       host_us(
           n, [&](int) { CUDA(cudaEventRecord(timing, s)); }, s),
       "us");
  fact("host time of cudaStreamWaitEvent",
       host_us(
           n, [&](int) { CUDA(cudaStreamWaitEvent(t, e, 0)); }, t),
       "us");
  fact("host time of cudaEventQuery of a reached event",
       host_us(
           n, [&](int) { (void)cudaEventQuery(e); }, s),
       "us");
  fact("host time of cudaMemcpyAsync H2D of 4 bytes, pinned",
       host_us(
           n, [&](int) { CUDA(cudaMemcpyAsync(device, fixed, 4, cudaMemcpyHostToDevice, s)); }, s),
       "us");
  fact("host time of cudaMemcpyAsync D2H of 4 bytes, pinned",
       host_us(
           n, [&](int) { CUDA(cudaMemcpyAsync(fixed, device, 4, cudaMemcpyDeviceToHost, s)); }, s),
       "us");
  fact("host time of cudaMemsetAsync",
       host_us(
           n, [&](int) { CUDA(cudaMemsetAsync(device, 0, 4096, s)); }, s),
       "us");
  fact("host time of cudaLaunchHostFunc",
       host_us(
           n,
           [&](int) {
             CUDA(cudaLaunchHostFunc(
                 s, [](void*) {}, nullptr));
           },
           s),
       "us");
  fact("host time of cudaEventCreate and Destroy",
       host_us(
           n, [&](int) { CUDA(cudaEventDestroy(new_event())); }, s),
       "us");
  Gate gate;
  gate.close(s, 2'000'000'000);
  CUDA(cudaEventRecord(e, s));
  std::vector<double> us;
  for (int i = 0; i < 20000; ++i) {
    const double begin = now_us();
    (void)cudaEventQuery(e);
    us.push_back(now_us() - begin);
  }
  gate.open();
  CUDA(cudaStreamSynchronize(s));
  fact("host time of cudaEventQuery of an event not reached", us, "us");
  // Two threads that launch at once on streams of their own.
  for (const int threads : {2, 4}) {
    std::vector<std::vector<double>> each(static_cast<std::size_t>(threads));
    std::vector<std::thread> all;
    for (int k = 0; k < threads; ++k)
      all.emplace_back([&, k] {
        const cudaStream_t mine = new_stream();
        each[static_cast<std::size_t>(k)] = host_us(
            n, [&](int) { empty<<<1, 32, 0, mine>>>(); }, mine);
      });
    for (auto& th : all) th.join();
    fact(text("host time of a launch, %d threads at once", threads), each[0], "us");
  }
  // One thread launches, another polls an event as a poller would.
  std::atomic<bool> stop{false};
  gate.close(t, 20'000'000'000ull);
  CUDA(cudaEventRecord(e, t));
  std::thread poller([&] {
    while (!stop) (void)cudaEventQuery(e);
  });
  fact("host time of a launch beside a thread that polls without pause",
       host_us(
           n, [&](int) { empty<<<1, 32, 0, s>>>(); }, s),
       "us");
  stop = true;
  poller.join();
  gate.open();
  CUDA(cudaDeviceSynchronize());
}

void kernel_rate() {
  const cudaStream_t s = new_stream();
  constexpr int n = 500;
  Gate gate;
  const cudaEvent_t begin = new_event(0), end = new_event(0);
  std::vector<double> us, graph_us, host;
  cudaGraph_t g = nullptr;
  cudaGraphExec_t x = nullptr;
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < n; ++i) empty<<<1, 32, 0, s>>>();
  CUDA(cudaStreamEndCapture(s, &g));
  CUDA(cudaGraphInstantiate(&x, g, 0));
  for (int r = 0; r < 20; ++r) {
    gate.close(s);
    CUDA(cudaEventRecord(begin, s));
    for (int i = 0; i < n; ++i) empty<<<1, 32, 0, s>>>();
    CUDA(cudaEventRecord(end, s));
    gate.open();
    CUDA(cudaStreamSynchronize(s));
    us.push_back(elapsed_ms(begin, end) * 1e3 / n);
    CUDA(cudaEventRecord(begin, s));
    const double t0 = now_us();
    CUDA(cudaGraphLaunch(x, s));
    host.push_back((now_us() - t0) / n);
    CUDA(cudaEventRecord(end, s));
    CUDA(cudaStreamSynchronize(s));
    graph_us.push_back(elapsed_ms(begin, end) * 1e3 / n);
  }
  fact("empty kernel after empty kernel, queued before", us, "us");
  fact("empty kernel after empty kernel in a graph of 500", graph_us, "us");
  fact("host time of a graph's launch, for each of its 500 kernels", host, "us");
}

std::atomic<double> called_us{0};

void seen_by_host() {
  const cudaStream_t s = new_stream();
  const cudaEvent_t e = new_event(), blocking = new_event(cudaEventDisableTiming | cudaEventBlockingSync);
  int* at = pinned<int>(64);
  *at = 0;
  constexpr int n = 2000;
  constexpr std::uint64_t kernel_ns = 20'000;
  std::vector<double> by_flag, by_event, after_flag, by_function, by_sync, by_blocking, function_after;
  for (int i = 1; i <= n; ++i) {
    const double begin = now_us();
    flag<<<1, 1, 0, s>>>(at, i, kernel_ns);
    CUDA(cudaEventRecord(e, s));
    while (*static_cast<volatile int*>(at) != i) {}
    const double flagged = now_us();
    while (cudaEventQuery(e) == cudaErrorNotReady) {}
    const double seen = now_us();
    by_flag.push_back(flagged - begin);
    by_event.push_back(seen - begin);
    after_flag.push_back(seen - flagged);
  }
  const double kernel_us = double(kernel_ns) / 1e3;
  const auto less = [&](std::vector<double> v) {
    for (auto& t : v) t -= kernel_us;
    return v;
  };
  fact("launch of a 20 us kernel until its own flag is seen in pinned memory, less 20 us", less(by_flag), "us");
  fact("launch until its event is seen, less 20 us", less(by_event), "us");
  fact("from the flag at the end of a kernel to its event", after_flag, "us");
  for (int i = 1; i <= n; ++i) {
    called_us = 0;
    flag<<<1, 1, 0, s>>>(at, i, kernel_ns);
    CUDA(cudaLaunchHostFunc(
        s, [](void*) { called_us = now_us(); }, nullptr));
    while (*static_cast<volatile int*>(at) != i) {}
    const double flagged = now_us();
    while (called_us == 0) {}
    by_function.push_back(called_us - flagged);
    CUDA(cudaStreamSynchronize(s));
  }
  fact("from the flag at the end of a kernel to its host function", by_function, "us");
  std::atomic<int> seen_value{0};
  std::atomic<double> seen_at{0};
  std::atomic<bool> stop{false};
  std::thread watcher([&] {  // sees the flag while the main thread is inside a call that waits
    int last = 0;
    while (!stop) {
      const int v = *static_cast<volatile int*>(at);
      if (v != last) {
        seen_at = now_us();
        seen_value = v;
        last = v;
      }
    }
  });
  for (int mode = 0; mode < 2; ++mode) {
    std::vector<double> us;
    for (int i = 1; i <= n / 2; ++i) {
      const int value = 100000 * (mode + 1) + i;
      flag<<<1, 1, 0, s>>>(at, value, kernel_ns);
      if (mode == 0) CUDA(cudaStreamSynchronize(s));
      else {
        CUDA(cudaEventRecord(blocking, s));
        CUDA(cudaEventSynchronize(blocking));
      }
      const double end = now_us();
      while (seen_value != value) {}
      us.push_back(end - seen_at);
    }
    fact(mode == 0 ? "from the flag to the return of cudaStreamSynchronize"
                   : "from the flag to the return of cudaEventSynchronize of a blocking event",
         us, "us");
  }
  stop = true;
  watcher.join();
  // A poller that looks at several events in turn, of as many streams.
  for (const int streams : {4, 8}) {
    std::vector<cudaStream_t> all;
    std::vector<cudaEvent_t> events;
    for (int k = 0; k < streams; ++k) {
      all.push_back(new_stream());
      events.push_back(new_event());
    }
    std::vector<double> us;
    for (int i = 1; i <= n / 2; ++i) {
      const int which = i % streams;
      for (int k = 0; k < streams; ++k) {
        if (k == which) flag<<<1, 1, 0, all[static_cast<std::size_t>(k)]>>>(at, -i - streams * 10000, 30'000);
        else spin<<<1, 1, 0, all[static_cast<std::size_t>(k)]>>>(60'000);
        CUDA(cudaEventRecord(events[static_cast<std::size_t>(k)], all[static_cast<std::size_t>(k)]));
      }
      double flagged = 0, seen = 0;
      while (seen == 0)
        for (int k = 0; k < streams; ++k) {
          if (flagged == 0 && *static_cast<volatile int*>(at) == -i - streams * 10000) flagged = now_us();
          if (cudaEventQuery(events[static_cast<std::size_t>(k)]) == cudaSuccess && k == which) seen = now_us();
        }
      us.push_back(flagged == 0 ? 0 : seen - flagged);
      CUDA(cudaDeviceSynchronize());
    }
    fact(text("from the flag to its event, one thread that polls %d events in turn", streams), us, "us");
  }
}

void gaps() {
  const cudaStream_t a = new_stream(), b = new_stream(), h = new_stream(-5);
  constexpr int n = 200;
  float* x = on_device<float>(1024);
  Gate gate;
  std::vector<cudaEvent_t> events;
  for (int i = 0; i < n; ++i) events.push_back(new_event());
  const cudaEvent_t begin = new_event(0), end = new_event(0);
  // A kernel on all multiprocessors of about 20 us, alone in a chain on one stream: what the other chains are compared
  // with.
  const int blocks = 132 * 2, turns = 6000;
  const auto kernel = [&](cudaStream_t s) { work<<<blocks, 256, 0, s>>>(x, turns); };
  const auto chain = [&](auto&& issue, cudaStream_t last) {
    std::vector<double> us;
    for (int r = 0; r < 15; ++r) {
      gate.close(a);
      CUDA(cudaEventRecord(begin, a));
      issue();
      CUDA(cudaEventRecord(end, last));
      gate.open();
      CUDA(cudaDeviceSynchronize());
      if (r >= 3) us.push_back(elapsed_ms(begin, end) * 1e3 / n);
    }
    return us;
  };
  const auto same = chain(
      [&] {
        for (int i = 0; i < n; ++i) kernel(a);
      },
      a);
  fact("chain on one stream: a kernel and the gap behind it", same, "us");
  const double one = median(same);
  const auto tell = [&](const char* name, std::vector<double> us) {
    for (auto& t : us) t -= one;
    fact(name, us, "us");
  };
  tell("more for an event recorded after each kernel, one stream",
       chain(
           [&] {
             for (int i = 0; i < n; ++i) {
               kernel(a);
               CUDA(cudaEventRecord(events[static_cast<std::size_t>(i)], a));
             }
           },
           a));
  tell("more for a record and a wait on the same stream",
       chain(
           [&] {
             for (int i = 0; i < n; ++i) {
               kernel(a);
               CUDA(cudaEventRecord(events[static_cast<std::size_t>(i)], a));
               CUDA(cudaStreamWaitEvent(a, events[static_cast<std::size_t>(i)], 0));
             }
           },
           a));
  const auto alternate = [&](cudaStream_t second) {
    for (int i = 0; i < n; ++i) {
      const cudaStream_t s = i % 2 ? second : a;
      if (i > 0) CUDA(cudaStreamWaitEvent(s, events[static_cast<std::size_t>(i) - 1], 0));
      kernel(s);
      CUDA(cudaEventRecord(events[static_cast<std::size_t>(i)], s));
    }
  };
  tell("more for two streams that alternate by events", chain([&] { alternate(b); }, b));
  tell("more for two streams of different priority that alternate by events", chain([&] { alternate(h); }, h));
  cudaGraph_t g = nullptr;
  cudaGraphExec_t x1 = nullptr, x2 = nullptr;
  CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < n; ++i) kernel(a);
  CUDA(cudaStreamEndCapture(a, &g));
  CUDA(cudaGraphInstantiate(&x1, g, 0));
  tell("more in a graph (negative: less)", chain([&] { CUDA(cudaGraphLaunch(x1, a)); }, a));
  CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 10; ++i) kernel(a);
  CUDA(cudaStreamEndCapture(a, &g));
  CUDA(cudaGraphInstantiate(&x2, g, 0));
  tell("more in graphs of 10 kernels", chain(
                                           [&] {
                                             for (int i = 0; i < n / 10; ++i) CUDA(cudaGraphLaunch(x2, a));
                                           },
                                           a));
  // By way of the host: the next kernel is launched when the event of the one before is seen.
  std::vector<double> hop, by_thread, by_condition, flagged;
  const cudaEvent_t e = new_event();
  for (int r = 0; r < 15; ++r) {
    const double t0 = now_us();
    for (int i = 0; i < n; ++i) {
      kernel(i % 2 ? b : a);
      CUDA(cudaEventRecord(e, i % 2 ? b : a));
      while (cudaEventQuery(e) == cudaErrorNotReady) {}
    }
    hop.push_back((now_us() - t0) / n);
  }
  tell("more by way of the host: the polling thread launches", hop);
  // A poller sees the event, an actor's thread that spins launches.
  for (const bool sleeps : {false, true}) {
    std::vector<double> us;
    std::atomic<int> asked{0}, seen{0};
    std::atomic<bool> stop{false};
    std::mutex m;
    std::condition_variable c;
    std::thread poller([&] {
      int next = 1;
      while (!stop) {
        if (asked.load(std::memory_order_acquire) < next) continue;
        while (cudaEventQuery(events[static_cast<std::size_t>(next) % n]) == cudaErrorNotReady) {}
        if (sleeps) {
          {
            std::lock_guard<std::mutex> lock(m);
            seen = next;
          }
          c.notify_one();
        } else seen.store(next, std::memory_order_release);
        ++next;
      }
    });
    int number = 0;
    for (int r = 0; r < 15; ++r) {
      const double t0 = now_us();
      for (int i = 0; i < n; ++i) {
        ++number;
        const cudaStream_t s = i % 2 ? b : a;
        kernel(s);
        CUDA(cudaEventRecord(events[static_cast<std::size_t>(number) % n], s));
        asked.store(number, std::memory_order_release);
        if (sleeps) {
          std::unique_lock<std::mutex> lock(m);
          c.wait(lock, [&] { return seen == number; });
        } else
          while (seen.load(std::memory_order_acquire) != number) {}
      }
      us.push_back((now_us() - t0) / n);
    }
    stop = true;
    poller.join();
    tell(sleeps ? "more by way of a poller and an actor's thread that sleeps"
                : "more by way of a poller and an actor's thread that spins",
         us);
  }
  // How many acts must be in flight so that the device does not idle: depth 1, 2, 3 with a host hop for each act of k
  // kernels.
  for (const int kernels : {1, 5, 20})
    for (const int depth : {1, 2, 3, 4}) {
      std::vector<double> us;
      const int acts = 400 / kernels;
      for (int r = 0; r < 7; ++r) {
        const double t0 = now_us();
        int issued = 0, done = 0;
        while (done < acts) {
          while (issued < acts && issued - done < depth) {
            for (int k = 0; k < kernels; ++k) kernel(a);
            CUDA(cudaEventRecord(events[static_cast<std::size_t>(issued) % n], a));
            ++issued;
          }
          while (cudaEventQuery(events[static_cast<std::size_t>(done) % n]) == cudaErrorNotReady) {}
          ++done;
        }
        us.push_back((now_us() - t0) / acts / kernels);
      }
      tell(text("more a kernel with %d acts of %d kernels in flight", depth, kernels).c_str(), us);
    }
}

}  // namespace

int main() {
  CUDA(cudaSetDevice(0));
  host_costs();
  kernel_rate();
  seen_by_host();
  gaps();
}
