// What ends an agent, beside its job.
#pragma once

#include <cstdint>
#include <optional>

#include "devices/base/status.h"
#include "devices/process/end_signals.h"
#include "devices/process/poll_set.h"

namespace troupe::runtime {

/// A signal (EndSignals), and the end of a descriptor, such as a pipe whose other end the process has that has started
/// the agent. A launcher of many processes sends SIGTERM to all of them: the job then ends with a checkpoint, for which
/// it needs its places. With `outlasts_signal` an agent whose machine a job has goes on at the first signal until that
/// job has ended; a SIGINT or SIGTERM at least a second later ends the agent at once. Not thread-safe.
class AgentEnds {
 public:
  explicit AgentEnds(int end_fd = -1, bool outlasts_signal = false)
      : end_fd_(end_fd), outlasts_signal_(outlasts_signal) {}
  AgentEnds(const AgentEnds&) = delete;
  /// Adds what due() looks at.
  void watch(PollSet& set);
  /// Ok while the agent goes on. `serves`: a job has its machine now. Error: `interrupted`, "interrupted by
  /// Terminated".
  Status due(bool serves, std::int64_t now_ns);

 private:
  EndSignals signals_;
  const int end_fd_;
  const bool outlasts_signal_;
  bool ended_ = false;                    // the descriptor
  std::optional<std::int64_t> first_ns_;  // of a signal that the agent outlasts
  Status outlasted_, why_;
};

}  // namespace troupe::runtime
