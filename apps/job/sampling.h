// `troupe sample`: text from a checkpoint, by a job whose only program is "sample".
#pragma once

#include <cstdio>

#include "apps/job/job.h"
#include "apps/options/config.h"

namespace troupe::lm {

/// The arguments of the command line.
struct SampleArguments {
  /// a checkpoint's folder, or a folder of checkpoints or a run's output folder: the newest good one
  std::string from;
  std::string text;           ///< to go on from; empty: sample.prompt
  std::int64_t tokens = -1;   ///< -1: sample.tokens
  double temperature = -1;    ///< -1: sample.temperature
  std::int64_t seed = -1;     ///< of the tokens that are drawn; -1: run.seed
  std::int64_t threads = -1;  ///< of each worker; -1: run.threads
  std::string mesh;           ///< empty: one worker, whatever the model was trained on
  std::string costs;          ///< a file of costs; empty: this machine's
};

/// Error: the model has tokens that are no bytes, so its samples have no text; or `prompt` (empty: the configuration's)
/// has a byte that is no token of the model.
Status check_sampled(const LmConfig& config, const std::string& prompt);

/// Writes the text and its continuation to stdout, each token as it comes. Prints an error to stderr; returns an exit
/// code (runtime/elastic/exit_codes.h).
int sample_command(const runtime::App& app, const SampleArguments& arguments);

}  // namespace troupe::lm
