// `troupe calibrate`: measures kernels and links of this machine once; plan, sim and train then use what it found.
#pragma once

#include "apps/costs/costs_file.h"
#include "runtime/launch/app.h"

namespace troupe::calibrate {

struct Arguments {
  std::string costs;   ///< the file to write; empty: default_costs_path()
  int threads = 1;     ///< of each worker
  std::int64_t widest = 1024;   ///< measures ops of models up to this width
};

/// Answers an exit code; has said on stderr what was wrong. Prints what it finds.
int calibrate_command(const runtime::App& app, const Arguments& arguments);

}  // namespace troupe::calibrate
