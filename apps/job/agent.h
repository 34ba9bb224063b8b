// The command that gives a machine to a run.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::lm {

struct AgentArguments {
  std::string join, token_file;
  std::string name;        ///< empty: the host's
  std::string net_device;  ///< of UCX; empty: its choice
  std::int32_t places = 1;
  int wait_s = 60;
};

/// Serves a run until it is over; prints an error to stderr, and returns an exit code.
int serve_run(const AgentArguments& arguments);

}  // namespace troupe::lm
