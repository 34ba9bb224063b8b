// Two processes on one GPU: how their kernels share it, and what a failure of one does to the other. Arguments: a name,
// seconds to run, and `fail` for a process that ends by an illegal access half-way.
#include <cmath>
#include <cstring>

#include "fact.h"

using namespace probe;

namespace {

__global__ void arithmetic(float* x, int turns) {
  float v = x[threadIdx.x];
  for (int i = 0; i < turns; ++i) v = fmaf(v, 0.999f, 0.001f);
  if (v == 12345.0f) x[threadIdx.x] = v;
}
__global__ void illegal(int* p) { *p = 1; }

}  // namespace

int main(int, char** argv) {
  const std::string name = argv[1];
  const double seconds = std::atof(argv[2]);
  const bool fails = argv[3] && std::string(argv[3]) == "fail";
  CUDA(cudaSetDevice(0));
  const cudaStream_t s = new_stream();
  const cudaEvent_t e = new_event();
  float* x = on_device<float>(1024);
  std::vector<double> us;
  const double begin = now_us();
  double last = begin;
  while (now_us() - begin < seconds * 1e6) {
    if (fails && now_us() - begin > seconds * 0.5e6) {
      illegal<<<1, 1, 0, s>>>(reinterpret_cast<int*>(0x10));
      fact(name + ": after its illegal access", probe::name_of(cudaStreamSynchronize(s)));
      return 0;
    }
    arithmetic<<<132 * 4, 512, 0, s>>>(x, 50000);
    CUDA(cudaEventRecord(e, s));
    cudaError_t r = cudaErrorNotReady;
    while (r == cudaErrorNotReady) r = cudaEventQuery(e);
    if (r != cudaSuccess) {
      fact(name + ": ended by", probe::name_of(r));
      return 0;
    }
    const double now = now_us();
    us.push_back(now - last);
    last = now;
  }
  fact(name + ": time of a kernel of all multiprocessors", us, "us");
  fact(name + ": kernels a second", double(us.size()) / seconds, "1/s");
}
