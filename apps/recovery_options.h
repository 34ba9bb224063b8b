// The options of runs that survive the loss of a worker (docs/elastic.md).
#pragma once

#include <CLI/CLI.hpp>

#include "apps/job/job.h"

namespace troupe {

/// Adds them to a command. REQUIRES: the arguments outlive `command`.
void recovery_options(CLI::App& command, lm::JobArguments& arguments);

}  // namespace troupe
