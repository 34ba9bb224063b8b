// Runs on several machines: the options of train, and the command that gives a run a machine (docs/machines.md).
#pragma once

#include <CLI/CLI.hpp>

#include "apps/job/agent.h"
#include "apps/job/job.h"

namespace troupe {

/// Adds them to `train`. REQUIRES: the arguments outlive the command.
void machine_options(CLI::App& train, lm::JobArguments& arguments);

/// Adds those of a command that needs no more of a run's machines than a worker on each: `--nodes`, `--hosts` and how
/// they are reached. The same REQUIRES.
void agents_options(CLI::App& command, lm::JobArguments& arguments);

/// Adds those with which a command that starts nothing is told of machines. The same REQUIRES.
void known_machine_options(CLI::App& command, lm::JobArguments& arguments);

/// `troupe train`: on this machine, or on several, as its options and the environment say: one process of many where a
/// launcher has started it. Prints an error to stderr, and returns an exit code.
int train_where_asked(const runtime::App& app, lm::JobArguments arguments);

/// `troupe agent`; returns it.
CLI::App* agent_command(CLI::App& cli, lm::AgentArguments& arguments);

}  // namespace troupe
