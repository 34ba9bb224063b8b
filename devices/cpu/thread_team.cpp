#include "devices/cpu/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "devices/base/check.h"
#include "devices/cpu/time_slice.h"

namespace troupe {
namespace {

/// About 10 us: longer than the gap between two loops of one kernel, too short to cost other threads much.
constexpr int kSpins = 400;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void set_up_thread(const std::string& name, int core) {
  ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

ThreadTeam::ThreadTeam(const std::string& name, int threads, const std::vector<int>& cores) {
  REQUIRE(threads >= 1, name, threads);
  for (int i = 1; i < threads; ++i) {
    const int core = i < static_cast<int>(cores.size()) ? cores[i] : -1;
    const std::string tail = "/" + std::to_string(i);
    helpers_.emplace_back([this, core, label = name.substr(0, 15 - tail.size()) + tail] {
      set_up_thread(label, core);
      set_time_slice(0);
      help();
    });
  }
}

ThreadTeam::~ThreadTeam() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& t : helpers_) t.join();
}

void ThreadTeam::take_indices() {
  try {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) (*body_)(i);
  } catch (...) {
    next_.store(n_, std::memory_order_relaxed);  // no thread begins another index
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadTeam::for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) {
  if (n <= 1 || helpers_.empty()) {
    for (std::int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    REQUIRE(!open_ && inside_ == 0, open_, inside_);  // one loop at a time, none within its own body
    body_ = &body;
    n_ = n;
    next_.store(0, std::memory_order_relaxed);
    open_ = true;
    round_.fetch_add(1, std::memory_order_release);
    for (auto i = std::min<std::int64_t>(sleeping_, n - 1); i > 0; --i) wake_.notify_one();
  }
  take_indices();
  std::unique_lock lock(mutex_);
  open_ = false;  // a helper that wakes up only now does not join; waiting for it would cost a wake-up
  left_.wait(lock, [&] { return inside_ == 0; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadTeam::help() {
  std::uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) relax();
    std::unique_lock lock(mutex_);
    ++sleeping_;
    wake_.wait(lock, [&] { return stop_ || round_.load(std::memory_order_relaxed) != seen; });
    --sleeping_;
    if (stop_) return;
    seen = round_.load(std::memory_order_relaxed);
    if (!open_) continue;
    ++inside_;
    lock.unlock();
    take_indices();
    lock.lock();
    if (--inside_ == 0) left_.notify_one();
  }
}

}  // namespace troupe
