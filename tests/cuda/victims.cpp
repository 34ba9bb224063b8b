// What is done in a process of its own, which it ends or leaves with a GPU that is of no use.
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>

#include "tests/cuda/gpu.h"

namespace troupe::test {
namespace {

Expected<std::unique_ptr<CudaDevice>> opened(const Clock& clock, CudaOptions options = {}) {
  auto device = CudaDevice::open(clock, options);
  if (!device.ok()) std::printf("no GPU: %s\n", device.status().message().c_str());
  return device;
}

void looks_at_device_memory() {
  SteadyClock clock;
  auto device = opened(clock);
  auto buffer = (*device)->allocate(4096);
  const auto* first = reinterpret_cast<const volatile std::uint8_t*>((*buffer)->data());
  std::printf("survived: %d\n", *first);
}

void never_idle() {
  SteadyClock clock;
  auto device = opened(clock, {.quiesce_budget_ns = 200'000'000});
  auto stream = (*device)->create_stream("compute", 1);
  Gate never, started;
  for (const char* name : {"stuck", "behind it"}) {
    Task t;
    t.name = name;
    t.work = [&, name](Parallel& parallel) {
      hold(parallel.queue(), never);
      if (std::string(name) == "behind it") started.open();
    };
    stream->submit(std::move(t));
  }
  started.wait();
  stream->quiesce();
  std::printf("survived\n");
}

void quiesces_in_a_callback() {
  SteadyClock clock;
  auto device = opened(clock);
  auto stream = (*device)->create_stream("compute", 1);
  Gate never;
  Task t;
  t.on_done = [&](std::int64_t, std::int64_t) { stream->quiesce(); };
  stream->submit(std::move(t));
  never.wait();
}

void waits_for_a_fence_of_a_later_task() {
  SteadyClock clock;
  auto device = opened(clock);
  auto stream = (*device)->create_stream("compute", 1);
  Task t;
  t.name = "early";
  t.waits = {(*device)->create_fence()};
  stream->submit(std::move(t));
  std::printf("survived\n");
}

#if !TROUPE_CUDA_DOUBLE
/// A kernel stores where there is no memory. Its PTX is compiled by the driver: no compiler of CUDA is needed.
void illegal_access() {
  static const char ptx[] = R"(
.version 8.0
.target sm_75
.address_size 64
.visible .entry store_nowhere()
{
  .reg .b64 %rd1;
  .reg .b32 %r1;
  mov.u64 %rd1, 64;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
)";
  SteadyClock clock;
  auto device = opened(clock);
  if (!device.ok()) return;
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  cudaError_t error = ::cudaLibraryLoadData(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error == cudaSuccess) error = ::cudaLibraryGetKernel(&kernel, library, "store_nowhere");
  if (error != cudaSuccess) {
    std::printf("no kernel: %s\n", ::cudaGetErrorString(error));
    std::fflush(stdout);
    ::_exit(0);
  }
  auto compute = (*device)->create_stream("compute", 1);
  auto copies = (*device)->create_stream("copies", 1);
  Gate dead;
  int deaths = 0, ended = 0;
  (*device)->on_dead([&](Status why) {
    ++deaths;
    std::printf("dead: %s: %s\n", to_string(why.code()), why.message().c_str());
    dead.open();
  });
  Task t;
  t.name = "store nowhere";
  t.work = [&](Parallel& parallel) {
    static_cast<void>(::cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1), dim3(1), nullptr, 0,
                                         static_cast<cudaStream_t>(parallel.queue())));
  };
  t.on_done = [&](std::int64_t, std::int64_t) { ++ended; };
  compute->submit(std::move(t));
  dead.wait();
  Task late;
  late.name = "late";
  late.on_done = [&](std::int64_t, std::int64_t) { ++ended; };
  copies->submit(std::move(late));
  compute->quiesce();
  copies->quiesce();
  const auto refused = (*device)->allocate(1);
  std::printf("deaths %d, ended %d, allocates: %s\n", deaths, ended, refused.status().message().c_str());
  std::fflush(stdout);
  ::_exit(0);
}
#endif

}  // namespace

void be_victim(const std::string& name) {
  const std::map<std::string, void (*)()> victims {
    {"looks_at_device_memory", looks_at_device_memory}, {"never_idle", never_idle},
        {"quiesces_in_a_callback", quiesces_in_a_callback},
        {"waits_for_a_fence_of_a_later_task", waits_for_a_fence_of_a_later_task},
#if !TROUPE_CUDA_DOUBLE
        {"illegal_access", illegal_access},
#endif
  };
  victims.at(name)();
  std::fflush(stdout);
  ::_exit(0);
}

}  // namespace troupe::test
