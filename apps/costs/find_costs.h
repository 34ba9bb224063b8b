// Which costs a job is planned with: those of a file that the user names, those of this machine, or built-in ones.
#pragma once

#include <optional>
#include <string>

#include "apps/costs/costs_file.h"
#include "devices/base/status.h"
#include "placement/cost.h"

namespace troupe::calibrate {

/// A file of costs as it was when it was read: it may change, or vanish, while a run goes on.
struct CostsFile {
  std::string path;  ///< empty: there is none, and built-in costs count
  std::string text;
  std::string warning;  ///< this machine's file is damaged, and not used; empty: it is not
  bool operator==(const CostsFile&) const = default;
};

/// Reads the file `named`, or where that is empty this machine's (default_costs_path), which is passed over where it is
/// not there or damaged. Error: the file `named` cannot be read.
Expected<CostsFile> open_costs(const std::string& named);

struct FoundCosts {
  CostModel model;
  /// CompileOptions::layout_costs: of one worker, whatever the workers and threads of the job
  CostModel layouts;
  /// links of some pairs of machines, where the file has them
  std::optional<MachineLinks> between;
  std::string from = "built-in";          ///< `model`, or the path of the file
  std::string layouts_from = "built-in";  ///< `layouts`, or the path of the file
  std::string warning;                    ///< the file is damaged, and not used; empty: it is not
  std::string layouts_only;               ///< the file is for other threads: a warning for who predicts; or empty
};

/// Returns the costs of the file, for `workers` workers of `threads` compute threads. Of a file for other threads it
/// takes `layouts` only, so that bits do not depend on threads; `model` is then the cost model's defaults, as where
/// there is no file. Error: the text is none of costs.
Expected<FoundCosts> costs_in(const CostsFile& file, std::int64_t threads, std::int64_t workers);

/// Both: the costs of the file `named`, or of this machine.
Expected<FoundCosts> find_costs(const std::string& named, std::int64_t threads, std::int64_t workers);

}  // namespace troupe::calibrate
