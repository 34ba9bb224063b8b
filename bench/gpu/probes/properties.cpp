// Versions, device attributes, and the device's properties as cuDNN serialises them (what a plan without a device is
// made of).
#include <cublasLt.h>
#include <cudnn.h>
#include <nccl.h>

#include "fact.h"

using probe::fact, probe::text;

int main(int argc, char** argv) {
  int driver = 0, runtime = 0, nccl = 0;
  CUDA(cudaDriverGetVersion(&driver));
  CUDA(cudaRuntimeGetVersion(&runtime));
  ncclGetVersion(&nccl);
  fact("versions", text("driver %d, runtime %d, cuBLASLt %zu, cuDNN %zu, NCCL %d", driver, runtime,
                        cublasLtGetVersion(), cudnnGetVersion(), nccl));
  std::size_t free = 0, total = 0;
  double begin = probe::now_us();
  CUDA(cudaSetDevice(0));
  CUDA(cudaFree(nullptr));
  fact("time to create the context", (probe::now_us() - begin) / 1e3, "ms");
  CUDA(cudaMemGetInfo(&free, &total));
  fact("memory taken by the context alone", double(total - free) / 0x1p20, "MiB");
  fact("memory in all", double(total) / 0x1p20, "MiB");
  cudaDeviceProp p{};
  CUDA(cudaGetDeviceProperties(&p, 0));
  fact("device",
       text("%s, %d multiprocessors, L2 %d, shared memory %zu of %zu, registers %d, global %zu, copy engines %d, bus "
            "%d bits",
            p.name, p.multiProcessorCount, p.l2CacheSize, p.sharedMemPerBlockOptin, p.sharedMemPerMultiprocessor,
            p.regsPerMultiprocessor, p.totalGlobalMem, p.asyncEngineCount, p.memoryBusWidth));
  const auto attribute = [](const char* name, cudaDeviceAttr a) {
    int v = -1;
    const cudaError_t e = cudaDeviceGetAttribute(&v, a, 0);
    if (e == cudaSuccess) fact(text("attribute %s", name), v, "");
    else fact(text("attribute %s", name), probe::name_of(e));
  };
  attribute("clock kHz", cudaDevAttrClockRate);
  attribute("memory clock kHz", cudaDevAttrMemoryClockRate);
  attribute("pageable memory access", cudaDevAttrPageableMemoryAccess);
  attribute("pageable memory access by the host's page tables", cudaDevAttrPageableMemoryAccessUsesHostPageTables);
  attribute("host register supported", cudaDevAttrHostRegisterSupported);
  attribute("host register read only supported", cudaDevAttrHostRegisterReadOnlySupported);
  attribute("a registered pointer is the device's pointer", cudaDevAttrCanUseHostPointerForRegisteredMem);
  attribute("host native atomics", cudaDevAttrHostNativeAtomicSupported);
  attribute("unified addressing", cudaDevAttrUnifiedAddressing);
  attribute("concurrent kernels", cudaDevAttrConcurrentKernels);
  attribute("stream priorities", cudaDevAttrStreamPrioritiesSupported);
  attribute("compute preemption", cudaDevAttrComputePreemptionSupported);
  attribute("compute mode", cudaDevAttrComputeMode);
  attribute("kernel time limit", cudaDevAttrKernelExecTimeout);
  attribute("GPUDirect RDMA", cudaDevAttrGPUDirectRDMASupported);
  attribute("memory pools", cudaDevAttrMemoryPoolsSupported);
  attribute("ECC", cudaDevAttrEccEnabled);
  int least = 0, greatest = 0;
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  fact("stream priorities", text("least %d, greatest %d", least, greatest));

  cudnnHandle_t handle{};
  begin = probe::now_us();
  fact("cudnnCreate", text("%d", static_cast<int>(cudnnCreate(&handle))));
  fact("time of cudnnCreate", (probe::now_us() - begin) / 1e3, "ms");
  std::size_t after = 0;
  CUDA(cudaMemGetInfo(&after, &total));
  fact("memory taken by a cuDNN handle", double(free - after) / 0x1p20, "MiB");
  cublasLtHandle_t lt{};
  cublasLtCreate(&lt);
  free = after;
  CUDA(cudaMemGetInfo(&after, &total));
  fact("memory taken by a cuBLASLt handle", double(free - after) / 0x1p20, "MiB");

  cudnnBackendDescriptor_t d{};
  std::int32_t id = 0;
  int s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d);
  if (!s) s = cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id);
  if (!s) s = cudnnBackendFinalize(d);
  std::int64_t n = 0;
  if (!s) s = cudnnBackendGetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &n, nullptr);
  std::vector<char> json(static_cast<std::size_t>(n) + 1);
  if (!s)
    s = cudnnBackendGetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, &n, json.data());
  fact("cuDNN's device properties", s ? text("status %d", s) : std::string(json.data()));
  if (!s && argc > 1)
    if (std::FILE* f = std::fopen(argv[1], "w")) {
      std::fputs(json.data(), f);
      std::fclose(f);
    }
}
