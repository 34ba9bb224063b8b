// What calls answer after a kernel has failed, one failure a process. Arguments: a kind of failure (illegal,
// misaligned, assert, trap, shared, host, none).
#include <csetjmp>
#include <csignal>
#include <cstring>

#include "fact.h"

using namespace probe;

namespace {

__global__ void illegal(int* p) { *p = 1; }
__global__ void misaligned(char* p) { *reinterpret_cast<int4*>(p + 1) = int4{1, 2, 3, 4}; }
__global__ void trap() { asm volatile("trap;"); }
__global__ void shared_overrun(int n) {
  extern __shared__ int mine[];
  mine[n] = n;
}
__global__ void fine(int* p) { *p = 5; }

sigjmp_buf back;

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "none";
  const double begin = now_us();
  CUDA(cudaSetDevice(0));
  const cudaStream_t a = new_stream(), b = new_stream(-5);
  const cudaEvent_t early = new_event(), late = new_event(), on_b = new_event();
  int* device = on_device<int>(1 << 20);
  int* there = pinned<int>(4);
  fine<<<1, 1, 0, a>>>(there);
  CUDA(cudaStreamSynchronize(a));
  fact("start of a process to its first kernel's end", (now_us() - begin) / 1e3, "ms");
  if (kind == "host") {  // the host reads device memory
    struct sigaction action {};
    action.sa_handler = [](int) { siglongjmp(back, 1); };
    sigaction(SIGSEGV, &action, nullptr);
    if (sigsetjmp(back, 1)) fact("host reads device memory", "SIGSEGV");
    else fact("host reads device memory", text("value %d, no signal", *static_cast<volatile int*>(device)));
    static int on_heap = 3;
    fine<<<1, 1, 0, a>>>(&on_heap);
    const cudaError_t e = cudaStreamSynchronize(a);
    fact("kernel writes pageable host memory", text("%s, value %d (5: it was written)", name_of(e).c_str(), on_heap));
    return 0;
  }
  CUDA(cudaEventRecord(early, a));
  CUDA(cudaEventSynchronize(early));
  there[1] = there[2] = 0;
  static volatile int called = 0;
  Gate other;
  if (kind != "none") other.close(b, 300'000'000);
  CUDA(cudaEventRecord(on_b, b));
  if (kind == "illegal") illegal<<<1, 1, 0, a>>>(reinterpret_cast<int*>(0x10));
  else if (kind == "misaligned") misaligned<<<1, 1, 0, a>>>(reinterpret_cast<char*>(device));
  else if (kind == "trap") trap<<<1, 1, 0, a>>>();
  else if (kind == "shared") shared_overrun<<<1, 1, 16, a>>>(1 << 22);
  fact(kind + ": last error right after the launch", name_of(cudaGetLastError()));
  fine<<<1, 1, 0, a>>>(there + 1);
  (void)cudaLaunchHostFunc(
      a, [](void*) { called = 1; }, nullptr);
  (void)cudaEventRecord(late, a);
  const double asked = now_us();
  cudaError_t e = cudaErrorNotReady;
  while (e == cudaErrorNotReady && now_us() - asked < 2e6) e = cudaEventQuery(late);
  fact(kind + ": query of an event behind it", name_of(e));
  fact(kind + ": time until that query says so", now_us() - asked, "us");
  fact(kind + ": query of an event that was reached before", name_of(cudaEventQuery(early)));
  fact(kind + ": query of an event of another stream", name_of(cudaEventQuery(on_b)));
  fact(kind + ": query of another stream", name_of(cudaStreamQuery(b)));
  fact(kind + ": synchronize the stream", name_of(cudaStreamSynchronize(a)));
  const cudaError_t first = cudaGetLastError(), second = cudaGetLastError(), peeked = cudaPeekAtLastError();
  fact(kind + ": last error, taken twice, then looked at",
       name_of(first) + ", " + name_of(second) + ", " + name_of(peeked));
  void* p = nullptr;
  fact(kind + ": cudaMalloc", name_of(cudaMalloc(&p, 64)));
  fact(kind + ": cudaHostAlloc", name_of(cudaHostAlloc(&p, 64, 0)));
  std::size_t free = 0, total = 0;
  fact(kind + ": cudaMemGetInfo", name_of(cudaMemGetInfo(&free, &total)));
  fine<<<1, 1, 0, b>>>(there + 2);
  fact(kind + ": launch on another stream", name_of(cudaGetLastError()));
  fact(kind + ": cudaEventRecord", name_of(cudaEventRecord(late, b)));
  fact(kind + ": cudaStreamWaitEvent", name_of(cudaStreamWaitEvent(b, late, 0)));
  fact(kind + ": cudaMemcpyAsync", name_of(cudaMemcpyAsync(device, there, 4, cudaMemcpyHostToDevice, b)));
  fact(kind + ": cudaLaunchHostFunc", name_of(cudaLaunchHostFunc(
                                          b, [](void*) {}, nullptr)));
  fact(kind + ": synchronize the device", name_of(cudaDeviceSynchronize()));
  fact(kind + ": work behind the failure",
       text("kernel of the same stream ran %d, of another stream %d, host function called %d", there[1] == 5,
            there[2] == 5, int(called)));
  fact(kind + ": cudaEventDestroy", name_of(cudaEventDestroy(late)));
  fact(kind + ": cudaStreamDestroy", name_of(cudaStreamDestroy(b)));
  fact(kind + ": cudaFree", name_of(cudaFree(device)));
  fact(kind + ": cudaFreeHost", name_of(cudaFreeHost(there)));
  if (argc > 2) {
    fact(kind + ": cudaDeviceReset", name_of(cudaDeviceReset()));
    fact(kind + ": cudaMalloc after it", name_of(cudaMalloc(&p, 64)));
  }
}
