#include "devices/cpu/time_slice.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace troupe {

namespace {

/// Reads the calling thread's. False: the system refuses, or the thread's policy is not SCHED_NORMAL.
bool read(sched_attr& attr) {
  return ::syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) == 0 && attr.sched_policy == SCHED_NORMAL;
}

}  // namespace

void set_time_slice(std::int64_t ns) {
  sched_attr attr{};
  if (!read(attr)) return;
  attr.sched_runtime = static_cast<std::uint64_t>(ns);
  ::syscall(SYS_sched_setattr, 0, &attr, 0);
}

std::int64_t time_slice() {
  sched_attr attr{};
  return read(attr) ? static_cast<std::int64_t>(attr.sched_runtime) : 0;
}

bool stop_preempting() {
  sched_attr attr{};
  if (!read(attr)) return false;
  attr.sched_policy = SCHED_BATCH;
  return ::syscall(SYS_sched_setattr, 0, &attr, 0) == 0;
}

}  // namespace troupe
