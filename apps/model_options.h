// The options of the commands that load a model from a checkpoint: sample and eval.
#pragma once

#include <CLI/CLI.hpp>

#include "apps/job/evaluation.h"
#include "apps/job/sampling.h"

namespace troupe {

/// Each adds the options of a command. REQUIRES: the arguments outlive `command`.
void sample_options(CLI::App& command, lm::SampleArguments& arguments);
void eval_options(CLI::App& command, lm::EvalArguments& arguments);

}  // namespace troupe
