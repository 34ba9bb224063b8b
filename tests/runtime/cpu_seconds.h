// The CPU time of the calling thread, which counts nothing that other threads and processes do: with it tests tell a
// cost that grows with a job from one that grows with the square of it.
#pragma once

#include <time.h>

inline double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}
