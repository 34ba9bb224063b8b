// Which costs a job is planned with: those of a file that the user names, those of this machine, or built-in ones.
#pragma once

#include <string>

#include "devices/base/status.h"
#include "placement/cost.h"

namespace troupe::calibrate {

struct FoundCosts {
  CostModel model;
  /// CompileOptions::layout_costs: of one worker, whatever the workers and threads of the job
  CostModel layouts;
  std::string from = "built-in";  ///< or the path of the file
  std::string warning;            ///< of a file that was passed over; empty: none
};

/// Returns the costs of the file `named`, for `workers` workers of `threads` compute threads. Where `named` is empty:
/// those of this machine's file (default_costs_path) if it is for as many threads, else the cost model's defaults; it
/// ignores a damaged file there and sets `warning`. Error: the file `named` cannot be read, or is for other threads.
Expected<FoundCosts> find_costs(const std::string& named, std::int64_t threads, std::int64_t workers);

}  // namespace troupe::calibrate
