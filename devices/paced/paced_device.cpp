#include "devices/paced/paced_device.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cmath>

#include "devices/cpu/thread_stream.h"
#include "devices/host_memory.h"

namespace troupe {
namespace {

/// A sleep may end this late on a quiet machine; the rest is spun away. More would cost CPU that the
/// other streams of a measurement need.
constexpr std::int64_t kSpin_ns = 60'000;

/// A stream that is being quiesced ends a sleep this late at most.
constexpr std::int64_t kLook_ns = 10'000'000;

/// Returns at due_ns, or before it when the stream is being quiesced.
void sleep_until(const Clock& clock, std::int64_t due_ns, const Parallel& parallel) {
  // Timers of ordinary threads may be 50 us late to save power; timers of this thread may not. (Cheap: no lock.)
  ::prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  for (std::int64_t left_ns; (left_ns = due_ns - clock.now_ns() - kSpin_ns) > 0;) {
    if (parallel.stopping()) return;
    timespec due;  // absolute, so that an interrupted sleep ends on time
    ::clock_gettime(CLOCK_MONOTONIC, &due);
    const std::int64_t total_ns = due.tv_nsec + std::min(left_ns, kLook_ns);
    due.tv_sec += total_ns / 1'000'000'000;
    due.tv_nsec = total_ns % 1'000'000'000;
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr) != 0) {}
  }
  while (clock.now_ns() < due_ns) {}
}

}  // namespace

Expected<std::unique_ptr<Buffer>> PacedDevice::allocate(std::size_t bytes) { return allocate_host(bytes); }

std::unique_ptr<Stream> PacedDevice::create_stream(const std::string& name, int threads) {
  return std::make_unique<ThreadStream>(
      name, threads, clock_, std::vector<int>{}, ThreadStream::Begin::at_end_of_previous,
      [&clock = clock_, options = options_](Task& task, Parallel& parallel, std::int64_t begin_ns) {
        std::int64_t end_ns = begin_ns + std::llround(task.cost_s * options.scale * 1e9);
        if (options.run_work && task.work) {
          task.work(parallel);
          end_ns = std::max(end_ns, clock.now_ns());
        }
        sleep_until(clock, end_ns, parallel);
        return parallel.stopping() ? std::min(end_ns, clock.now_ns()) : end_ns;
      });
}

}  // namespace troupe
