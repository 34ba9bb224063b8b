// Pinned memory and copies: what pinning costs (allocated, registered, a memfd, by several threads), copy rates, how a
// copy beside compute slows it, and how long a 4-byte copy waits behind large ones.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "fact.h"

using namespace probe;

namespace {

constexpr std::size_t GiB = std::size_t{1} << 30, MiB = std::size_t{1} << 20;

__global__ void stream_copy(const uint4* __restrict__ from, uint4* __restrict__ to, std::size_t n) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < n;
       i += std::size_t(gridDim.x) * blockDim.x)
    to[i] = from[i];
}
__global__ void arithmetic(float* x, int turns) {
  float v[8];
  for (int k = 0; k < 8; ++k) v[k] = x[threadIdx.x] + k;
  for (int i = 0; i < turns; ++i)
    for (int k = 0; k < 8; ++k) v[k] = fmaf(v[k], 0.999f, 0.001f);
  float s = 0;
  for (int k = 0; k < 8; ++k) s += v[k];
  if (s == 12345.0f) x[threadIdx.x] = s;
}
__global__ void store(int* at, int value) {
  *at = value;
  __threadfence_system();
}

/// f(piece, bytes of it) on so many threads at once, seconds.
template <class F>
double in_parallel(int threads, std::size_t bytes, F&& f) {
  const double begin = now_us();
  std::vector<std::thread> all;
  for (int k = 0; k < threads; ++k)
    all.emplace_back([&, k] {
      const std::size_t piece = bytes / static_cast<std::size_t>(threads);
      f(piece * static_cast<std::size_t>(k), piece);
    });
  for (auto& t : all) t.join();
  return (now_us() - begin) / 1e6;
}

void pinning() {
  for (const std::size_t bytes : {GiB, 8 * GiB}) {
    void* p = nullptr;
    double begin = now_us();
    CUDA(cudaHostAlloc(&p, bytes, 0));
    fact(text("cudaHostAlloc of %zu GiB", bytes / GiB), double(bytes) / (now_us() - begin) / 1e3, "GB/s");
    begin = now_us();
    CUDA(cudaFreeHost(p));
    fact(text("cudaFreeHost of %zu GiB", bytes / GiB), double(bytes) / (now_us() - begin) / 1e3, "GB/s");
  }
  const std::size_t bytes = 4 * GiB;
  enum Source { anonymous, huge, memfd, huge_memfd };
  for (const Source source : {anonymous, huge, memfd, huge_memfd})
    for (const int threads : {1, 4, 16}) {
      const char* what = source == anonymous ? "anonymous"
                         : source == huge    ? "anonymous, huge pages"
                         : source == memfd   ? "memfd, shared"
                                             : "memfd, shared, huge pages advised";
      int fd = -1;
      if (source == memfd || source == huge_memfd) {
        fd = static_cast<int>(memfd_create("probe", 0));
        if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return fact("memfd", "cannot be made");
      }
      auto* p = static_cast<char*>(
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0));
      if (p == MAP_FAILED) return fact("mmap", "failed");
      if (source == huge || source == huge_memfd) (void)madvise(p, bytes, MADV_HUGEPAGE);
      const double touched = in_parallel(threads, bytes, [&](std::size_t at, std::size_t n) {
        for (std::size_t i = 0; i < n; i += 4096) p[at + i] = 1;
      });
      fact(text("pages of %s taken by %d threads", what, threads), double(bytes) / touched / 1e9, "GB/s");
      cudaError_t e = cudaSuccess;
      const double s = in_parallel(threads, bytes, [&](std::size_t at, std::size_t n) {
        const cudaError_t mine = cudaHostRegister(p + at, n, 0);
        if (mine != cudaSuccess) e = mine;
      });
      fact(text("cudaHostRegister of %s by %d threads", what, threads),
           e == cudaSuccess ? text("%.2f GB/s", double(bytes) / s / 1e9) : name_of(e));
      (void)cudaGetLastError();
      if (e == cudaSuccess && threads == 1) {
        char* device = on_device<char>(GiB);
        const cudaStream_t st = new_stream();
        fact(text("D2H of 1 GiB to registered %s", what),
             double(GiB) /
                 median(
                     timed_ms(st, 5, [&](int) { CUDA(cudaMemcpyAsync(p, device, GiB, cudaMemcpyDeviceToHost, st)); })) /
                 1e6,
             "GB/s");
        fact(text("H2D of 1 GiB from registered %s", what),
             double(GiB) /
                 median(
                     timed_ms(st, 5, [&](int) { CUDA(cudaMemcpyAsync(device, p, GiB, cudaMemcpyHostToDevice, st)); })) /
                 1e6,
             "GB/s");
        CUDA(cudaFree(device));
      }
      if (e == cudaSuccess) {
        const double u = in_parallel(threads, bytes,
                                     [&](std::size_t at, std::size_t) { (void)cudaHostUnregister(p + at); });
        fact(text("cudaHostUnregister of %s by %d threads", what, threads), double(bytes) / u / 1e9, "GB/s");
      }
      munmap(p, bytes);
      if (fd >= 0) close(fd);
    }
  // Several threads that allocate pinned memory at once.
  for (const int threads : {4, 16}) {
    std::vector<void*> all(static_cast<std::size_t>(threads));
    const double s = in_parallel(threads, bytes,
                                 [&](std::size_t at, std::size_t n) { CUDA(cudaHostAlloc(&all[at / n], n, 0)); });
    fact(text("cudaHostAlloc of 4 GiB by %d threads", threads), double(bytes) / s / 1e9, "GB/s");
    for (auto* p : all) CUDA(cudaFreeHost(p));
  }
  // Pages that are not there yet.
  auto* fresh = static_cast<char*>(mmap(nullptr, 2 * GiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const double begin = now_us();
  const cudaError_t e = cudaHostRegister(fresh, 2 * GiB, 0);
  fact("cudaHostRegister of pages not there yet, one thread",
       text("%s, %.2f GB/s", name_of(e).c_str(), double(2 * GiB) / (now_us() - begin) / 1e3));
  (void)cudaHostUnregister(fresh);
  munmap(fresh, 2 * GiB);
}

void rates() {
  const cudaStream_t in = new_stream(), out = new_stream();
  char *device = on_device<char>(2 * GiB), *fixed = pinned<char>(2 * GiB);
  std::memset(fixed, 1, 2 * GiB);
  for (const std::size_t n : {std::size_t{4096}, std::size_t{65536}, MiB, 4 * MiB, 16 * MiB, 64 * MiB, GiB}) {
    const int calls = n > 64 * MiB ? 8 : 50;
    const std::string size = n < MiB ? text("%zu KiB", n >> 10) : text("%zu MiB", n >> 20);
    fact("H2D pinned " + size,
         double(n) /
             median(timed_ms(in, calls,
                             [&](int) { CUDA(cudaMemcpyAsync(device, fixed, n, cudaMemcpyHostToDevice, in)); })) /
             1e6,
         "GB/s");
    fact("D2H pinned " + size,
         double(n) /
             median(timed_ms(out, calls,
                             [&](int) { CUDA(cudaMemcpyAsync(fixed, device, n, cudaMemcpyDeviceToHost, out)); })) /
             1e6,
         "GB/s");
  }
  const double begin = now_us();
  for (int i = 0; i < 5; ++i) {
    CUDA(cudaMemcpyAsync(device, fixed, GiB, cudaMemcpyHostToDevice, in));
    CUDA(cudaMemcpyAsync(fixed + GiB, device + GiB, GiB, cudaMemcpyDeviceToHost, out));
  }
  CUDA(cudaDeviceSynchronize());
  fact("both directions at once, sum", 10.0 * double(GiB) / (now_us() - begin) / 1e3, "GB/s");
  std::vector<char> pageable(GiB, 1);
  for (int r = 0; r < 2; ++r) {
    double t = now_us();
    CUDA(cudaMemcpyAsync(device, pageable.data(), GiB, cudaMemcpyHostToDevice, in));
    CUDA(cudaStreamSynchronize(in));
    if (r) fact("H2D pageable 1 GiB", double(GiB) / (now_us() - t) / 1e3, "GB/s");
    t = now_us();
    CUDA(cudaMemcpyAsync(pageable.data(), device, GiB, cudaMemcpyDeviceToHost, in));
    CUDA(cudaStreamSynchronize(in));
    if (r) fact("D2H pageable 1 GiB", double(GiB) / (now_us() - t) / 1e3, "GB/s");
  }
  // Copies in chunks, one after the other on a stream.
  for (const std::size_t chunk : {256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}) {
    std::vector<double> ms = timed_ms(
        out, 5,
        [&](int) {
          for (std::size_t at = 0; at < GiB; at += chunk)
            CUDA(cudaMemcpyAsync(fixed + at, device + at, chunk, cudaMemcpyDeviceToHost, out));
        },
        1);
    fact(text("D2H of 1 GiB in chunks of %zu KiB", chunk >> 10), double(GiB) / median(ms) / 1e6, "GB/s");
  }
  // A kernel that writes to pinned memory instead of a copy engine.
  fact("D2H of 1 GiB by a kernel that stores into pinned memory, 16 blocks",
       double(GiB) /
           median(timed_ms(
               out, 4,
               [&](int) {
                 stream_copy<<<16, 1024, 0, out>>>(reinterpret_cast<uint4*>(device), reinterpret_cast<uint4*>(fixed),
                                                   GiB / 16);
               },
               1)) /
           1e6,
       "GB/s");

  // A small copy behind large ones of another stream, with and without priority, and a kernel's own store.
  int least = 0, greatest = 0;
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  const cudaStream_t bulk = new_stream(least), quick = new_stream(greatest);
  const cudaEvent_t e = new_event();
  int* word = pinned<int>(64);
  const auto small_copy = [&](const char* what, std::size_t chunk, bool by_kernel, bool upward) {
    std::vector<double> us;
    for (int i = 1; i <= 60; ++i) {
      if (chunk)
        for (std::size_t at = 0; at < GiB; at += chunk)
          CUDA(upward ? cudaMemcpyAsync(device + at, fixed + at, chunk, cudaMemcpyHostToDevice, bulk)
                      : cudaMemcpyAsync(fixed + at, device + at, chunk, cudaMemcpyDeviceToHost, bulk));
      const double pause = now_us() + 1000 + i * 17;
      while (now_us() < pause) {}
      const double begin = now_us();
      if (by_kernel) store<<<1, 1, 0, quick>>>(word, i);
      else CUDA(cudaMemcpyAsync(word, device, 4, cudaMemcpyDeviceToHost, quick));
      CUDA(cudaEventRecord(e, quick));
      while (cudaEventQuery(e) == cudaErrorNotReady) {}
      us.push_back(now_us() - begin);
      CUDA(cudaStreamSynchronize(bulk));
    }
    fact(what, us, "us");
  };
  small_copy("4-byte D2H, copy engine idle", 0, false, false);
  for (const std::size_t chunk : {1 << 20, 4 << 20, 16 << 20, 64 << 20, 1 << 30}) {
    small_copy(text("4-byte D2H beside D2H in chunks of %zu MiB", chunk >> 20).c_str(), chunk, false, false);
  }
  // The same, where the host keeps only so many chunks in flight.
  for (const std::size_t chunk : {1 << 20, 4 << 20, 16 << 20})
    for (const int depth : {1, 2, 4}) {
      std::vector<double> us;
      std::vector<cudaEvent_t> reached;
      for (int i = 0; i < depth; ++i) reached.push_back(new_event());
      const std::size_t total = 8 * GiB;
      std::size_t issued = 0, done = 0, at = 0;
      const double begin = now_us();
      double next = begin + 1000, asked = 0;
      while (done * chunk < total) {
        if (issued * chunk < total && issued - done < static_cast<std::size_t>(depth)) {
          CUDA(cudaMemcpyAsync(fixed + at, device + at, chunk, cudaMemcpyDeviceToHost, bulk));
          CUDA(cudaEventRecord(reached[issued % static_cast<std::size_t>(depth)], bulk));
          at = (at + chunk) % GiB;
          ++issued;
        } else if (cudaEventQuery(reached[done % static_cast<std::size_t>(depth)]) == cudaSuccess) ++done;
        if (asked == 0 && now_us() > next) {
          asked = now_us();
          CUDA(cudaMemcpyAsync(word, device, 4, cudaMemcpyDeviceToHost, quick));
          CUDA(cudaEventRecord(e, quick));
        } else if (asked != 0 && cudaEventQuery(e) == cudaSuccess) {
          us.push_back(now_us() - asked);
          asked = 0;
          next = now_us() + 777;
        }
      }
      fact(text("D2H, at most %d chunks of %zu MiB in flight", depth, chunk >> 20),
           double(total) / (now_us() - begin) / 1e3, "GB/s");
      fact(text("4-byte D2H beside at most %d chunks of %zu MiB in flight", depth, chunk >> 20), us, "us");
      CUDA(cudaDeviceSynchronize());
    }
  small_copy("4-byte D2H beside H2D in chunks of 1024 MiB", GiB, false, true);
  small_copy("4 bytes stored by a kernel, copy engine idle", 0, true, false);
  small_copy("4 bytes stored by a kernel beside D2H in chunks of 1024 MiB", GiB, true, false);

  // Compute beside copies.
  float* x = on_device<float>(1024);
  uint4* big = reinterpret_cast<uint4*>(on_device<char>(4 * GiB));
  const cudaStream_t compute = new_stream(0);
  const std::size_t half = 2 * GiB / 16;
  const auto memory_bound = [&](int) { stream_copy<<<132 * 8, 512, 0, compute>>>(big, big + half, half); };
  const auto arithmetic_bound = [&](int) { arithmetic<<<132 * 4, 512, 0, compute>>>(x, 40000); };
  const auto beside = [&](const char* what, auto&& body, int n) {
    const double alone = median(timed_ms(compute, n, body));
    for (const int direction : {0, 1, 2}) {
      std::size_t copied = 0;
      const double begin = now_us();
      const int copies = static_cast<int>(alone * (n + 6) / 1e3 * 60e9 / double(16 * MiB)) + 64;
      for (int i = 0; i < copies; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) % 64 * 16 * MiB;
        if (direction != 1) CUDA(cudaMemcpyAsync(fixed + at, device + at, 16 * MiB, cudaMemcpyDeviceToHost, bulk));
        if (direction != 0)
          CUDA(cudaMemcpyAsync(device + GiB + at, fixed + GiB + at, 16 * MiB, cudaMemcpyHostToDevice, quick));
        copied += 16 * MiB * (direction == 2 ? 2 : 1);
      }
      const double with = median(timed_ms(compute, n, body));
      CUDA(cudaDeviceSynchronize());
      fact(text("%s beside %s", what,
                direction == 0   ? "D2H"
                : direction == 1 ? "H2D"
                                 : "both"),
           text("alone %.4f ms, beside %.4f ms: %+.2f %%; copies %.1f GB/s", alone, with, (with / alone - 1) * 100,
                double(copied) / (now_us() - begin) / 1e3));
    }
  };
  beside("memory-bound kernel", memory_bound, 200);
  beside("arithmetic-bound kernel", arithmetic_bound, 100);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  CUDA(cudaSetDevice(0));
  CUDA(cudaFree(nullptr));
  if (only != "pinning") rates();
  if (only != "rates") pinning();
}
