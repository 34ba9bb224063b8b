#include "devices/cpu/cpu_device.h"

#include <sched.h>

#include "devices/cpu/thread_stream.h"
#include "devices/host_memory.h"

namespace troupe {

CpuDevice::CpuDevice(const Clock& clock, CpuOptions options) : clock_(clock) {
  cpu_set_t set;
  if (options.pin && ::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores_.push_back(core);
}

Expected<std::unique_ptr<Buffer>> CpuDevice::allocate(std::size_t bytes) { return allocate_host(bytes); }

std::unique_ptr<Stream> CpuDevice::create_stream(const std::string& name, int threads) {
  std::vector<int> cores;
  for (int i = 0; i < threads && !cores_.empty(); ++i) cores.push_back(cores_[next_core_++ % cores_.size()]);
  return std::make_unique<ThreadStream>(name, threads, clock_, cores,
                                        [](Task& task, Parallel& parallel, std::int64_t) {
                                          if (task.work) task.work(parallel);
                                        });
}

}  // namespace troupe
