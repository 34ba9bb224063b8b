// What run.recovery and --recovery say: "off", "slots", "copies:8".
#pragma once

#include <cstdint>
#include <string>

#include "devices/base/status.h"

namespace troupe::lm {

/// From what a run goes on that loses a worker.
struct Recovery {
  bool slots = false;           ///< parameters and moments lie in memory twice (CompileOptions::keeps_version)
  std::int64_t copy_every = 0;  ///< > 0: copies of every so many steps (CompileOptions::keeps_copies)
  bool on() const { return slots || copy_every > 0; }
};

/// Error: names the text, and what is expected.
Expected<Recovery> parse_recovery(const std::string& text);

}  // namespace troupe::lm
