#include "comm/ucx/ucx_signals.h"

#include <dlfcn.h>
#include <signal.h>
#include <ucs/debug/debug.h>

#include <string_view>

namespace troupe::comm {

namespace {

/// Whether a handler is a function of UCX's library.
bool is_of_ucx(void (*handler)(int)) {
  if (handler == SIG_DFL || handler == SIG_IGN) return false;
  Dl_info found{};
  return ::dladdr(reinterpret_cast<void*>(handler), &found) != 0 && found.dli_fname &&
         std::string_view(found.dli_fname).find("libucs.so") != std::string_view::npos;
}

void give_back(int signal) {
  struct sigaction action {};
  // UCX knows what the signal did before. It would print a warning for one that it does not handle.
  if (::sigaction(signal, nullptr, &action) == 0 && is_of_ucx(action.sa_handler)) ::ucs_debug_disable_signal(signal);
}

/// Before main: from preinit to the constructors that follow this function devices/process/ignored_signals.cpp holds
/// SIGHUP back, so that none comes to UCX.
__attribute__((constructor(201))) void give_back_hangup() { give_back(SIGHUP); }

}  // namespace

void give_back_signals() {
  for (int signal = 1; signal < NSIG; ++signal) give_back(signal);
}

}  // namespace troupe::comm
