// The options of runs that survive the loss of a worker (docs/elastic.md).
#pragma once

#include <CLI/CLI.hpp>

#include "apps/job/job.h"
#include "apps/job/running.h"

namespace troupe {

/// Adds them to a command. REQUIRES: the arguments outlive `command`.
void recovery_options(CLI::App& command, lm::JobArguments& arguments);

/// The commands that ask a running job; the one that was parsed is in `run`.
void running_commands(CLI::App& cli, lm::RunningArguments& arguments, int (*&run)(const lm::RunningArguments&));

}  // namespace troupe
