// The signals that end a job, as something to poll.
#pragma once

#include <signal.h>

#include <optional>

namespace troupe::runtime {

/// While it lives, SIGINT, SIGTERM and, where the process did not begin with it ignored, SIGHUP do nothing but make
/// `fd` readable.
class EndSignals {
 public:
  EndSignals();
  /// Drops signals that have come since: they must not end the caller now.
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  int fd() const { return fd_; }
  /// The number of the oldest signal that has come and was not taken yet.
  std::optional<int> take() const;

 private:
  sigset_t before_{};
  int fd_ = -1;
};

}  // namespace troupe::runtime
