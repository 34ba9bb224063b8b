// Signals that UCX's library takes as it is loaded, before main of every program that is linked to it: by default
// SIGILL, SIGBUS, SIGFPE and SIGSEGV, to print a backtrace, and SIGHUP, to turn a debug log on. Only the environment
// can say which (UCX_HANDLE_ERRORS, UCX_ERROR_SIGNALS, UCX_DEBUG_SIGNO). A program that links this file has SIGHUP back
// before main, and one that comes while UCX is loaded has its effect then.
#pragma once

namespace troupe::comm {

/// Gives each signal that UCX's library handles the effect back that it had before: its usual one, none where the
/// process began with it ignored, a sanitizer's report. A handler that the program has installed since stays. REQUIRES:
/// no other thread changes handlers meanwhile.
void give_back_signals();

}  // namespace troupe::comm
