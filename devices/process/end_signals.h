// The signals that end a process, as something to poll.
#pragma once

#include <signal.h>

#include <optional>

#include "devices/base/status.h"

namespace troupe {

/// While it lives, SIGINT, SIGTERM and SIGHUP, but those that the process began with ignored, do nothing but make `fd`
/// readable: in the calling thread, and in threads that it starts meanwhile. One may live within another: the inner one
/// then takes signals that came before it was made, too, and leaves those that it has not taken to the outer one. Where
/// no descriptor is left, `fd` is -1 and signals keep the effect that they had before this object.
/// REQUIRES: threads that live already block these signals; one that does not takes a signal with its usual effect.
class EndSignals {
 public:
  EndSignals();
  /// Drops signals that have come since: they must not end the caller now. After pass_on(), or within another
  /// EndSignals, each has the effect that it had before this object.
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  int fd() const { return fd_; }
  /// The number of the oldest signal that has come and was not taken yet.
  std::optional<int> take() const;
  /// Ok before the first signal; then `interrupted`, "interrupted by Terminated", each time. Takes the signals that
  /// have come.
  Status interrupted();
  /// Whether one has come since the process began that an EndSignals has taken, or dropped, or holds back.
  static bool has_come();
  /// Keeps signals that have come, or come from now on, for what follows this object.
  void pass_on() { passes_on_ = true; }

 private:
  sigset_t before_{};
  int fd_ = -1;
  bool passes_on_ = false;
  Status first_;  ///< of interrupted()
};

}  // namespace troupe
