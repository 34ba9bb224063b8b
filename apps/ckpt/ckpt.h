// `troupe ckpt`: looks at checkpoints, verifies, compares and removes them. Needs no configuration and no workers.
#pragma once

#include <string>

#include "checkpoint/catalog.h"

namespace troupe::ckpt {

struct Arguments {
  /// A folder of checkpoints, of which the newest is meant, or one checkpoint's folder.
  std::string dir;
  std::string other;                ///< diff: the same
  std::string tensor;               ///< show: of one tensor, with its extents; empty: of the manifest
  checkpoint::Retention retention;  ///< prune
};

/// Each prints its result, and an error to stderr; returns an exit code (runtime/elastic/exit_codes.h).
int ls_command(const Arguments& arguments);
int show_command(const Arguments& arguments);
int verify_command(const Arguments& arguments);
int diff_command(const Arguments& arguments);
int prune_command(const Arguments& arguments);

}  // namespace troupe::ckpt
