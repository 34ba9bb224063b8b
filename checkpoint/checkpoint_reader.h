// CheckpointReader: reads a checkpoint in whole blocks, and checks each block before it returns.
#pragma once

#include <memory>
#include <set>

#include "checkpoint/manifest.h"
#include "devices/base/storage.h"
#include "devices/device.h"

namespace troupe::checkpoint {

/// An extent that is to be read, and its offset in the reader's buffer.
struct ExtentRead {
  const StoredTensor* tensor = nullptr;
  const StoredExtent* extent = nullptr;
  std::int64_t at = 0;  ///< bytes from a buffer's begin
};
/// Sorts reads by (file, offset) and gives each its place in a buffer, in that order, at a multiple of
/// storage_alignment: neighbours in a file are neighbours in the buffer. Returns the buffer's bytes, a multiple of
/// storage_alignment.
std::int64_t lay_out_reads(std::vector<ExtentRead>& wanted);

class CheckpointReader {
 public:
  /// `folder`: the path of the checkpoint that `manifest` describes. `files`: indices of the shards that will be read
  /// (null: all); of a thousand places' shards each place needs a few. Error: `damaged`, naming a shard that is
  /// missing, or whose size or header is not the manifest's; the storage's.
  static Expected<CheckpointReader> open(Storage& storage, const std::string& folder, Manifest manifest,
                                         const std::set<std::int32_t>* files = nullptr);

  const Manifest& manifest() const { return manifest_; }
  /// Reads extents of the manifest, as lay_out_reads() placed them, into a buffer that begins at a multiple of
  /// storage_alignment; checks every block. Reentrant. Error: `damaged`, naming file, tensor, extent and block, or with
  /// the system's message where reading fails. REQUIRES files that open() has opened.
  Status read(const std::vector<ExtentRead>& wanted, std::byte* into, Parallel& parallel) const;
  /// Reads `part` of a tensor, which need not be an extent of it, into a row-major buffer of `part`. Reads whole
  /// extents, one at a time.
  Status read_part(const StoredTensor& tensor, const Extent& part, std::byte* into) const;
  /// Reads every extent, and its padding, which must be zero. Returns one line for each block that is damaged, has
  /// damaged padding behind it, or cannot be read: file, tensor, block.
  std::vector<std::string> verify(Parallel& parallel) const;

 private:
  CheckpointReader() = default;
  enum class Padding : bool { ignored, zero };
  /// Reads and checks. Returns one line per bad block, in the order of the file.
  std::vector<std::string> check(const std::vector<ExtentRead>& wanted, Padding padding, std::byte* into,
                                 Parallel& parallel) const;
  Status fetch(std::int32_t file, std::int64_t offset, std::int64_t bytes, std::byte* into) const;
  std::string where(const ExtentRead& wanted) const;

  std::string folder_;
  Manifest manifest_;
  std::vector<std::shared_ptr<File>> files_;  // null: not opened
};

/// How a tensor of two checkpoints differs.
struct TensorDifference {
  std::string name;
  enum class Kind : std::uint8_t { same, values, missing_in_a, missing_in_b, shape, dtype } kind = Kind::same;
  std::int64_t elements = 0;  ///< that differ in their bits
  double greatest = 0;        ///< the greatest |a - b|; infinite where a difference is not finite
};
/// One entry per tensor of either checkpoint, equal ones too, in the order of (parameter, kind); their extents may
/// differ. Needs memory for two tensors and one extent. Error: a failed read.
Expected<std::vector<TensorDifference>> diff(const CheckpointReader& a, const CheckpointReader& b);

}  // namespace troupe::checkpoint
