#include "devices/process/hangup.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace troupe {

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

}  // namespace

bool hangup_ignored() { return ignored; }

}  // namespace troupe
