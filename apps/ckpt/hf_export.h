// troupe ckpt export: a checkpoint's parameters as Hugging Face's LlamaForCausalLM loads them.
#pragma once

#include <string>
#include <vector>

#include "devices/base/give_up.h"
#include "devices/base/storage.h"
#include "kernels/op.h"

namespace troupe::ckpt {

struct ExportArguments {
  /// A checkpoint's folder, or a folder of checkpoints, of which the newest is meant.
  std::string from;
  std::string out;  ///< a folder that is not there yet
  /// Largest file of tensors, where no tensor is larger; Hugging Face's default.
  std::int64_t file_bytes = 5'000'000'000;
};

struct Exported {
  std::string from;  ///< the checkpoint's folder
  std::int64_t parameters = 0, bytes = 0, files = 0;
  std::vector<std::string> warnings;
};

/// Writes config.json and model.safetensors, or several model-0000i-of-0000n.safetensors with their index, into `out`,
/// which appears when all of it is on disk. The same checkpoint gives the same bytes. Every block is checked as it is
/// read. Needs memory for the largest tensor and an extent. On an error, `code` is the exit code for it, and nothing of
/// `out` is left; an error of `give_up`, which is asked before each tensor and before `out` appears, is an
/// interruption.
Expected<Exported> export_hf(Storage& storage, const kernels::OpSet& ops, const ExportArguments& arguments, int& code,
                             const GiveUp& give_up = never_give_up);

}  // namespace troupe::ckpt
