// troupe ckpt import: a Llama that Hugging Face's transformers saved, as a checkpoint from which training begins.
#pragma once

#include <string>
#include <vector>

#include "devices/base/give_up.h"
#include "devices/base/storage.h"
#include "kernels/op.h"

namespace troupe::ckpt {

struct ImportArguments {
  /// folder with config.json and model.safetensors, or an index of several
  std::string from;
  std::string out;        ///< folder of checkpoints; has none yet
  std::string config;     ///< TOML of everything but the model; empty: defaults
  std::uint64_t job = 0;  ///< number of the new job, not 0
};

struct Imported {
  std::string folder;  ///< of the checkpoint
  std::int64_t parameters = 0;
  std::string widened;                ///< dtypes that became f32: "BF16, F16"
  std::vector<std::string> warnings;  ///< of the configuration (see lm::load_config), of values that are not finite
};

/// Commits a checkpoint of step 0 that has parameters and no moments. Needs memory for two pieces of 16 MiB. Error:
/// nothing has been committed, and `code` is the exit code for it; what was written is removed, and `out` and its
/// parents where this call has made them; a claim that was there is there again. An error of `give_up`, which is asked
/// before each piece and before the commit, is an interruption.
Expected<Imported> import_hf(Storage& storage, const kernels::OpSet& ops, const ImportArguments& arguments, int& code,
                             const GiveUp& give_up = never_give_up);

}  // namespace troupe::ckpt
