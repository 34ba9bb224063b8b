// Host code as devices/cuda would have it: plain C++ against cuda_runtime_api.h. The same object file is linked with
// the real runtime or with the double. Double-buffered: copy in, compute, copy out, on three streams ordered by events.
#include "pipeline.h"
#include <cuda_runtime_api.h>
#include <cstdio>
#include <initializer_list>
#define TRY(x)                                     \
  do {                                             \
    if (cudaError_t e_ = (x); e_ != cudaSuccess) { \
      r.error = e_;                                \
      r.where = #x;                                \
      return r;                                    \
    }                                              \
  } while (0)
Result pipeline(int chunks, int n, LaunchScale scale, int bug) {
  Result r;
  float *device[2], *in, *out;
  cudaStream_t h2d, compute, d2h;
  cudaEvent_t arrived[2], computed[2], left[2];
  TRY(cudaSetDevice(0));
  TRY(cudaStreamCreateWithPriority(&h2d, cudaStreamNonBlocking, 0));
  TRY(cudaStreamCreateWithPriority(&compute, cudaStreamNonBlocking, 0));
  TRY(cudaStreamCreateWithPriority(&d2h, cudaStreamNonBlocking, 0));
  for (int i = 0; i < 2; ++i) {
    TRY(cudaMalloc(reinterpret_cast<void**>(&device[i]), n * sizeof(float)));
    for (cudaEvent_t* e : {&arrived[i], &computed[i], &left[i]})
      TRY(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
  }
  TRY(cudaHostAlloc(reinterpret_cast<void**>(&in), chunks * n * sizeof(float), 0));
  TRY(cudaHostAlloc(reinterpret_cast<void**>(&out), chunks * n * sizeof(float), 0));
  for (int i = 0; i < chunks * n; ++i) in[i] = i, out[i] = -1;
  for (int c = 0; c < chunks; ++c) {
    const int slot = c % 2;
    if (c >= 2 && bug != 1) TRY(cudaStreamWaitEvent(h2d, left[slot], 0));  // the credit: the slot is free again
    TRY(cudaMemcpyAsync(device[slot], in + c * n, n * sizeof(float), cudaMemcpyHostToDevice, h2d));
    TRY(cudaEventRecord(arrived[slot], h2d));
    if (bug != 2) TRY(cudaStreamWaitEvent(compute, arrived[slot], 0));
    scale(compute, device[slot], n, 2.0f);
    TRY(cudaEventRecord(computed[slot], compute));
    if (bug != 3) TRY(cudaStreamWaitEvent(d2h, computed[slot], 0));
    TRY(cudaMemcpyAsync(out + c * n, device[slot], n * sizeof(float), cudaMemcpyDeviceToHost, d2h));
    TRY(cudaEventRecord(left[slot], d2h));
  }
  if (bug == 4) r.sum += device[0][0];  // the host looks at device memory
  for (int i = 0; i < 2; ++i)
    for (cudaError_t e; (e = cudaEventQuery(left[i])) != cudaSuccess;)  // the poller
      if (e != cudaErrorNotReady) {
        r.error = e;
        r.where = "poll";
        return r;
      }
  for (int i = 0; i < chunks * n; ++i) r.wrong += out[i] != 2.0f * i;
  for (auto s : {h2d, compute, d2h}) TRY(cudaStreamDestroy(s));
  return r;
}
