// Commands that ask a run, while it runs: what it does, what it logs, and to go on in another shape.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::lm {

/// Where a run with --recovery listens.
std::string socket_of(const std::string& out);

struct RunningArguments {
  std::string out;         ///< its output folder, or HOST:PORT, at which its agents join, with a token file
  std::string token_file;  ///< empty: `out` is a folder
  std::string mesh;        ///< to go on with
  std::int64_t lines = 0;  ///< the last ones of its log; 0: all that it keeps
  bool follows = false;    ///< further ones, too, until it ends
};

/// Each prints the run's answer, or an error to stderr, and returns an exit code.
int ps_command(const RunningArguments& arguments);
int scale_command(const RunningArguments& arguments);
int logs_command(const RunningArguments& arguments);

}  // namespace troupe::lm
