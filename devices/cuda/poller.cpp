#include "devices/cuda/poller.h"

#include <algorithm>

#include "devices/base/check.h"
#include "devices/cpu/thread_team.h"
#include "devices/cpu/time_slice.h"

namespace troupe::cuda {
namespace {

/// Rounds without a find after which the thread offers its core to others between two rounds: about 50 us.
constexpr int kSpins = 40;

/// About 1 us: a thread that asks without pause makes every launch of the others a quarter slower.
void pause_between_rounds() {
#if defined(__x86_64__)
  for (int i = 0; i < 32; ++i) __builtin_ia32_pause();
#endif
}

}  // namespace

Poller::Poller(std::string name, std::function<void()> set_up) {
  thread_ = std::thread([this, name = std::move(name), set_up = std::move(set_up)] {
    set_up_thread(name, -1);
    set_time_slice(0);
    set_up();
    run();
  });
}

Poller::~Poller() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Poller::add(Polled& polled) {
  std::lock_guard lock(mutex_);
  polled_.push_back(&polled);
}

void Poller::remove(Polled& polled) {
  REQUIRE(!is_this_thread());  // it would wait for itself
  std::unique_lock lock(mutex_);
  std::erase(polled_, &polled);
  left_.wait(lock, [&] { return looked_at_ != &polled; });
}

void Poller::expect() {
  if (expected_.fetch_add(1, std::memory_order_acq_rel) > 0) return;
  std::lock_guard lock(mutex_);  // the thread is before its look at expected_, or waits
  wake_.notify_one();
}

void Poller::run() {
  int rounds = 0;  // since the last find
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || expected_.load(std::memory_order_acquire) > 0; });
    if (stop_) return;
    bool found = false;
    for (std::size_t i = 0; i < polled_.size(); ++i) {  // others may add and remove meanwhile
      Polled& polled = *polled_[i];
      looked_at_ = &polled;
      lock.unlock();
      found |= polled.look();
      lock.lock();
      looked_at_ = nullptr;
      left_.notify_all();
    }
    rounds = found ? 0 : rounds + 1;
    if (found) continue;
    lock.unlock();
    if (rounds <= kSpins) pause_between_rounds();
    else std::this_thread::yield();
    lock.lock();
  }
}

}  // namespace troupe::cuda
