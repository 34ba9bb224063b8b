// Starts a command as a child of this process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "devices/base/status.h"

namespace troupe::lm {

struct SpawnOptions {
  std::string folder;  ///< in which it runs; empty: that of this process
  int stdin_fd = -1;   ///< its standard input; -1: that of this process
  bool logs = false;   ///< what it puts out goes to stderr
};

/// Starts `command`, found as a shell finds it, in a process group of its own: Ctrl-C does not reach it. No signal is
/// blocked there. Returns its process. Error (`io`): it cannot be started, and why.
Expected<pid_t> spawn(std::vector<std::string> command, const SpawnOptions& options);

}  // namespace troupe::lm
