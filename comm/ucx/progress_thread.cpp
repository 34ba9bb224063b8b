#include "comm/ucx/progress_thread.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "devices/base/check.h"

namespace troupe::comm::ucx {
namespace {

std::int64_t ns_of(const timespec& t) { return t.tv_sec * 1'000'000'000ll + t.tv_nsec; }

}  // namespace

ProgressThread::~ProgressThread() {
  shutdown();
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

Status ProgressThread::start() {
  wake_fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0) return {Code::io, std::string("eventfd: ") + std::strerror(errno)};
  sigset_t all, before;  // signals are for the main thread
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "troupe-ucx");
  return {};
}

// ---- from any thread ------------------------------------------------------------------------------

void ProgressThread::submit(Command command) {
  bool sleeps = false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    commands_.push_back(std::move(command));
    pending_.store(true, std::memory_order_release);
    sleeps = std::exchange(asleep_, false);  // one wake-up for all commands until it sleeps again
  }
  if (sleeps) wake();
}

void ProgressThread::wake() {  // without the mutex, which the woken thread takes first
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_fd_, &one, sizeof one);
}

void ProgressThread::shutdown() {
  std::lock_guard joining(join_mutex_);
  if (thread_.joinable()) {
    REQUIRE(std::this_thread::get_id() != thread_.get_id());
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      closed_ = true;
      pending_ = true;
    }
    wake();
    thread_.join();
  }
  std::vector<Command> dropped;
  std::lock_guard lock(mutex_);
  closed_ = true;
  dropped.swap(commands_);
}

std::int64_t ProgressThread::cpu_ns() {
  std::lock_guard joining(join_mutex_);
  clockid_t id;
  timespec t{};
  if (!thread_.joinable() || pthread_getcpuclockid(thread_.native_handle(), &id) != 0 || clock_gettime(id, &t) != 0)
    return cpu_ns_at_end_;
  return ns_of(t);
}

// ---- the progress thread's own --------------------------------------------------------------------

void ProgressThread::run() {
  for (;;) {
    if (!drain()) break;
    while (worker_.progress() && !pending_.load(std::memory_order_acquire)) {}
    client_.handle_failures();
    if (!pending_.load(std::memory_order_acquire) && !spin()) sleep();
  }
  client_.wind_down();
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  cpu_ns_at_end_ = ns_of(t);
}

/// Executes the commands. False: stop.
bool ProgressThread::drain() {
  std::vector<Command> batch;
  {
    std::lock_guard lock(mutex_);
    if (stop_) return false;
    batch.swap(commands_);
    pending_.store(false, std::memory_order_relaxed);
  }
  for (Command& c : batch) client_.execute(c);
  return true;
}

/// Polls for a while. True: something happened.
bool ProgressThread::spin() {
  if (spin_us_ <= 0) return false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
  do {
    if (worker_.progress() || pending_.load(std::memory_order_acquire)) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

/// Wake-ups get lost on UCX 1.13's shared memory: with twelve workers on two cores, 8 of 480 pairs slept for ever over
/// messages that had arrived (0 of 480 since). So no sleep is longer than this bound; idle, it costs well under a
/// hundredth of a core.
constexpr int longest_sleep_ms = 50;

void ProgressThread::sleep() {
  {
    std::lock_guard lock(mutex_);
    if (!commands_.empty() || stop_ || client_.any_failed()) return;
    asleep_ = true;
  }
  if (worker_.arm()) {
    pollfd fds[2] = {{worker_.fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    ::poll(fds, 2, longest_sleep_ms);
    std::uint64_t n;
    if (fds[1].revents != 0) [[maybe_unused]]
      const auto got = ::read(wake_fd_, &n, sizeof n);
  }
  std::lock_guard lock(mutex_);
  asleep_ = false;
}

}  // namespace troupe::comm::ucx
