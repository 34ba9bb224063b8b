// `troupe eval`: the loss of a checkpoint on a text, by a job whose only program is "evaluate".
#pragma once

#include <cstdint>
#include <string>

#include "apps/job/job.h"

namespace troupe::lm {

/// The arguments of the command line.
struct EvalArguments {
  /// a checkpoint's folder, or a folder of checkpoints or a run's output folder: the newest good one
  std::string from;
  std::int64_t step = -1;     ///< of the checkpoint; -1: any
  std::string data;           ///< a text, all of it; empty: what the run that saved the checkpoint evaluates
  bool held_out = false;      ///< with `data`, the text of that run: what it evaluates of it
  std::int64_t batches = -1;  ///< microbatches; -1: eval.batches, of all of a text as many as it has
  std::int64_t threads = -1;  ///< of each worker; -1: run.threads
  std::string mesh;           ///< empty: one worker, whatever the model was trained on
  std::string costs;          ///< a file of costs; empty: this machine's
  bool json = false;          ///< the result is a JSON object
};

/// Prints the mean loss, the perplexity, the number of tokens and the checkpoint's step to stdout. Prints an error to
/// stderr; returns an exit code (runtime/elastic/exit_codes.h).
int eval_command(const runtime::App& app, const EvalArguments& arguments);

}  // namespace troupe::lm
