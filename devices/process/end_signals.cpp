#include "devices/process/end_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "devices/process/ignored_signals.h"

namespace troupe {

namespace {

thread_local int living = 0;  // in this thread, one within another
std::atomic<bool> any_taken = false;
constexpr int end_signals[] = {SIGINT, SIGTERM, SIGHUP};

}  // namespace

EndSignals::EndSignals() {
  ++living;
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : end_signals)
    if (!ignored_at_start(signal)) sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, &before_);
  fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) ::sigprocmask(SIG_SETMASK, &before_, nullptr);  // no object would read them
}

EndSignals::~EndSignals() {
  const bool within_another = --living > 0;
  while (!passes_on_ && !within_another && take()) {}
  if (fd_ >= 0) ::close(fd_);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> EndSignals::take() const {
  signalfd_siginfo info{};
  if (::read(fd_, &info, sizeof info) != sizeof info) return std::nullopt;
  any_taken = true;
  return static_cast<int>(info.ssi_signo);
}

bool EndSignals::has_come() {
  sigset_t waiting;
  sigemptyset(&waiting);
  ::sigpending(&waiting);
  for (const int signal : end_signals)
    if (!ignored_at_start(signal) && sigismember(&waiting, signal) == 1) return true;
  return any_taken;
}

Status EndSignals::interrupted() {
  while (const auto signal = take())
    if (first_.ok()) first_ = Status(Code::interrupted, std::string("interrupted by ") + ::strsignal(*signal));
  return first_;
}

}  // namespace troupe
