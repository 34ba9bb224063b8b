// AgentCommands: commands that this process has started, each of which is the agent of a machine, or (ssh) reaches it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "apps/machines/invitation.h"
#include "devices/base/status.h"

namespace troupe::lm {

/// Each has a pipe of this process as its standard input, by which it is invited, and at whose end its agent ends: none
/// outlives this process, however that ends. What they put out goes to stderr. Not thread-safe.
class AgentCommands {
 public:
  AgentCommands() = default;
  ~AgentCommands() { finish(grace_ms); }
  AgentCommands(const AgentCommands&) = delete;
  /// Starts the command of a machine's agent. It is in a process group of its own: Ctrl-C does not reach it, and the
  /// run ends in order. Error (`io`): it cannot be started.
  Status start(const std::string& machine, std::vector<std::string> command);
  /// Tells all of them where the run is.
  void invite(const Invitation& invitation);
  /// Error (`unavailable`): one has ended, and how.
  Status ended();
  /// Closes their standard input, waits `ms` for their end, and ends those that are left.
  void finish(int ms);

 private:
  static constexpr int grace_ms = 5000;
  struct Command {
    std::string machine;
    pid_t pid = -1;
    int in_fd = -1;  // write end
  };
  /// Whether all have ended, once `ms` are over or before.
  bool await_ends(int ms);

  std::vector<Command> commands_;
};

}  // namespace troupe::lm
