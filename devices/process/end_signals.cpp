#include "devices/process/end_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "devices/process/ignored_signals.h"

namespace troupe {

namespace {
thread_local int living = 0;  // in this thread, one within another
}

EndSignals::EndSignals() {
  ++living;
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (!ignored_at_start(signal)) sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, &before_);
  fd_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

EndSignals::~EndSignals() {
  const bool within_another = --living > 0;
  while (!passes_on_ && !within_another && take()) {}
  ::close(fd_);
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> EndSignals::take() const {
  signalfd_siginfo info{};
  if (::read(fd_, &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

Status EndSignals::interrupted() {
  while (const auto signal = take())
    if (first_.ok()) first_ = Status(Code::unavailable, std::string("interrupted by ") + ::strsignal(*signal));
  return first_;
}

}  // namespace troupe
