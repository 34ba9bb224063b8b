#include "devices/process/ignored_signals.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace troupe {

namespace {

/// A bit for each of the signals. Read before any library is initialised: UCX installs a handler of its own for SIGHUP
/// as it is loaded.
unsigned ignored = 0;
/// SIGHUP as the kernel's set of signals, and the set of those that the process began with blocked.
constexpr std::uint64_t hangup = std::uint64_t{1} << (SIGHUP - 1);
std::uint64_t blocked = 0;

/// Holds SIGHUP back, too: that handler would take one that comes before main.
__attribute__((no_sanitize("address", "undefined"))) void look_at_signals(int, char**, char**) {
  struct {
    void* handler;
    unsigned long flags;
    void* restorer;
    std::uint64_t mask;
  } action;  // the kernel's struct sigaction: none of libc's functions is sure to work here
  constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
  for (const int signal : signals)
    // 1: SIG_IGN
    if (::syscall(SYS_rt_sigaction, signal, nullptr, &action, sizeof action.mask) == 0 &&
        action.handler == reinterpret_cast<void*>(1))
      ignored |= 1U << signal;
  ::syscall(SYS_rt_sigprocmask, SIG_BLOCK, &hangup, &blocked, sizeof hangup);
}
__attribute__((section(".preinit_array"), used)) void (*const look_at_signals_first)(int, char**,
                                                                                     char**) = look_at_signals;

/// Before main, and after the constructor that takes SIGHUP from UCX (comm/ucx/ucx_signals.cpp: its number is lower).
__attribute__((constructor(202))) void let_hangup_come() {
  if ((blocked & hangup) == 0) ::syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &hangup, nullptr, sizeof hangup);
}

}  // namespace

bool ignored_at_start(int signal) { return (ignored >> signal & 1U) != 0; }

}  // namespace troupe
