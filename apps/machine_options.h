// Runs on several machines: the options of train, and the command that gives a run a machine (docs/machines.md).
#pragma once

#include <CLI/CLI.hpp>

#include "apps/job/agent.h"
#include "apps/job/job.h"

namespace troupe {

/// Adds them to `train`. REQUIRES: the arguments outlive the command.
void machine_options(CLI::App& train, lm::JobArguments& arguments);

/// `troupe train`: on this machine, or on several, as its options and the environment say: one process of many where a
/// launcher has started it. Prints an error to stderr, and returns an exit code.
int train_where_asked(const runtime::App& app, lm::JobArguments arguments);

/// `troupe agent`; returns it.
CLI::App* agent_command(CLI::App& cli, lm::AgentArguments& arguments);

}  // namespace troupe
