// Time slices of threads. Where threads outnumber cores, Linux lets a thread that wakes wait until the running one has
// used up its slice (1.4 ms on two cores). A thread that acts for microseconds and sleeps again (actors, the network)
// asks for a short slice: from Linux 6.12 on it then runs as soon as it wakes, and its share of the CPU stays the same.
// Where no thread waits for what such a thread does, it need not interrupt the running one: each switch costs
// microseconds.
#pragma once

#include <cstdint>

namespace troupe {

/// For the calling thread, and for the threads and processes that it starts from now on. 0: the system's own.
/// Best effort: older systems keep theirs. No effect after stop_preempting().
void set_time_slice(std::int64_t ns);

/// ns, of the calling thread. 0: the system has no slices of a thread's own, or the thread has stopped preempting.
std::int64_t time_slice();

/// The calling thread, and the threads and processes that it starts from now on, no longer preempt a running thread
/// when they wake: they wait until it sleeps or has used up its slice, and their share of the CPU stays the same
/// (SCHED_BATCH). False, and nothing has changed: the system refuses, or the thread's policy is not the usual one.
bool stop_preempting();

}  // namespace troupe
