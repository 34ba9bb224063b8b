// Runs on several machines whose agents the user does not start by hand: a launcher has started this process on each
// machine, or the command starts the agents itself, on hosts that the user has named (docs/launchers.md).
#pragma once

#include "apps/job/job.h"
#include "apps/machines/task.h"

namespace troupe::lm {

/// What a task of a launcher does: the first one trains, and starts the agent of its machine; every other one is the
/// agent of its machine. Prints an error to stderr, and returns an exit code. REQUIRES: this process has one thread.
int train_as_task(const runtime::App& app, const JobArguments& arguments, const LaunchedTask& task);
/// Trains on `arguments.hosts`: starts their agents, and ends them. The same REQUIRES.
int train_on_hosts(const runtime::App& app, const JobArguments& arguments);

}  // namespace troupe::lm
