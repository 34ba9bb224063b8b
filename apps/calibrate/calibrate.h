// `troupe calibrate`: measures kernels, links and the disk of this machine once, or links between machines; plan, sim
// and train then use these costs.
#pragma once

#include "apps/costs/costs_file.h"
#include "apps/job/job.h"
#include "runtime/launch/app.h"

namespace troupe::calibrate {

struct Arguments {
  std::string costs;           ///< the file to write; empty: default_costs_path()
  int threads = 1;             ///< of each worker
  std::int64_t widest = 1024;  ///< measures ops of models up to this width
  std::string checkpoint_dir;  ///< folder on the disk to measure; empty: the current one, if it can be written
  /// Machines, by `hosts` or `machines`, and a throttle: links between them are measured, and nothing else; empty: this
  /// machine is.
  lm::JobArguments between;
};

/// Prints what it measures, and an error to stderr; returns an exit code (runtime/elastic/exit_codes.h).
/// A signal that ends the process ends the measurement, of which no file is left, and no folder that it made.
int calibrate_command(const runtime::App& app, const Arguments& arguments);

}  // namespace troupe::calibrate
