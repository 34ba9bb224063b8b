// Runs on several machines: the options of train, and the command that gives a run a machine (docs/machines.md).
#pragma once

#include <CLI/CLI.hpp>

#include "apps/job/agent.h"
#include "apps/job/job.h"

namespace troupe {

/// Adds them to `train`. REQUIRES: the arguments outlive the command.
void machine_options(CLI::App& train, lm::JobArguments& arguments);

/// The same paths on all machines, whatever the folder in which each agent runs: relative ones become absolute.
void name_paths_for_all(lm::JobArguments& arguments);

/// `troupe agent`; returns it.
CLI::App* agent_command(CLI::App& cli, lm::AgentArguments& arguments);

}  // namespace troupe
