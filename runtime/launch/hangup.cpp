#include "runtime/launch/hangup.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace troupe::runtime {

namespace {

/// Whether the process began with SIGHUP ignored, as under nohup. Read before any library is initialised: UCX installs
/// a handler of its own as it is loaded.
bool ignored = false;

__attribute__((no_sanitize("address", "undefined"))) void look_at_hangup(int, char**, char**) {
  struct {
    void* handler;
    unsigned long flags;
    void* restorer;
    std::uint64_t mask;
  } action;  // the kernel's struct sigaction: none of libc's functions is sure to work here
  // 1: SIG_IGN
  if (::syscall(SYS_rt_sigaction, SIGHUP, nullptr, &action, sizeof action.mask) == 0)
    ignored = action.handler == reinterpret_cast<void*>(1);
}
__attribute__((section(".preinit_array"), used)) void (*const look_at_hangup_first)(int, char**,
                                                                                    char**) = look_at_hangup;

/// The handler of SIGHUP after the libraries were initialised. Null (SIG_DFL): there was none.
void (*of_libraries)(int) = nullptr;

/// The program's own constructors run after those of the libraries that it is linked to, and before main.
__attribute__((constructor)) void look_at_library_hangup() {
  struct sigaction action {};
  if (::sigaction(SIGHUP, nullptr, &action) == 0) of_libraries = action.sa_handler;
}

}  // namespace

bool hangup_ignored() { return ignored; }

void remove_library_hangup() {
  struct sigaction action {};
  if (::sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == of_libraries)
    ::signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
}

}  // namespace troupe::runtime
