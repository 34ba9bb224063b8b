#include "devices/cpu/cpu_device.h"

#include <sched.h>

#include <algorithm>

#include "devices/cpu/thread_stream.h"
#include "devices/host_memory.h"

namespace troupe {

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

void keep_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

Expected<std::unique_ptr<Buffer>> CpuDevice::allocate(std::size_t bytes) { return allocate_host(bytes); }

std::unique_ptr<Stream> CpuDevice::create_stream(const std::string& name, int threads) {
  const auto end = free_cores_.begin() + std::min<std::ptrdiff_t>(threads, std::ssize(free_cores_));
  const std::vector<int> cores(free_cores_.begin(), end);
  free_cores_.erase(free_cores_.begin(), end);
  return std::make_unique<ThreadStream>(name, threads, clock_, cores, ThreadStream::Begin::now,
                                        [&clock = clock_](Task& task, Parallel& parallel, std::int64_t) {
                                          if (task.work) task.work(parallel);
                                          return clock.now_ns();
                                        });
}

}  // namespace troupe
