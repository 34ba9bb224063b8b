// The safetensors of a folder that Hugging Face's transformers wrote: which tensor lies where, and its values as f32.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "apps/ckpt/hf_config.h"
#include "checkpoint/shard.h"

namespace troupe::ckpt {

/// A model's tensors, and the files that they are in. Opens a file when it is read. Not thread-safe.
class HfFiles {
 public:
  /// Reads headers, and the index where there is one. Error: no safetensors there; not exactly these parameters, in
  /// f32, bf16 or f16 (naming those that differ, with the shapes that were expected).
  static Expected<HfFiles> open(Storage& storage, const std::string& folder, const std::vector<Parameter>& model);

  /// Reads rows [lo, hi) of parameter `parameter` (an index into `model`), widened to f32, into `into`. Error: of the
  /// disk.
  Status read(std::size_t parameter, Range rows, std::byte* into);
  /// Dtypes that are widened: "BF16, F16".
  std::string widened() const;
  /// Names the tensors of which a value that was read is NaN or infinite, for people; empty: there is none.
  std::string warning() const;

 private:
  explicit HfFiles(Storage& storage) : storage_(&storage) {}
  struct HfTensor {
    std::string path;  ///< of the file that has it
    checkpoint::SafeTensor tensor;
  };
  Status add(const std::string& folder, const std::string& file);
  Status add_index(const std::string& folder);
  Status match(const std::vector<Parameter>& model);

  Storage* storage_;
  std::vector<HfTensor> tensors_;  ///< by name, until `open` has put them into the model's order
  std::string opened_;             ///< path of `file_`
  std::unique_ptr<File> file_;
  std::vector<std::byte> narrow_;  ///< a piece as it is in the file
  std::set<std::string> not_finite_;
};

}  // namespace troupe::ckpt
