// Runs on several machines whose agents the user does not start by hand: a launcher has started this process on each
// machine, or the command starts the agents itself, on hosts that the user has named (docs/launchers.md).
#pragma once

#include <functional>

#include "apps/job/job.h"
#include "apps/machines/task.h"

namespace troupe::lm {

/// What a task of a launcher does: the first one trains, and starts the agent of its machine; every other one is the
/// agent of its machine. Prints an error to stderr, and returns an exit code. REQUIRES: this process has one thread.
int train_as_task(const runtime::App& app, const JobArguments& arguments, const LaunchedTask& task);
/// Does `run` on `arguments.hosts`: starts their agents, has it wait for them with the arguments that it is given, and
/// ends them. Prints an error to stderr, and returns an exit code. The same REQUIRES.
int run_on_hosts(const JobArguments& arguments, const std::function<int(const JobArguments& arguments)>& run);

}  // namespace troupe::lm
