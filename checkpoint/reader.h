// Reader: the bytes of a checkpoint, whole blocks only, each checked before anybody sees it.
#pragma once

#include <memory>

#include "checkpoint/manifest.h"
#include "devices/base/storage.h"
#include "devices/device.h"

namespace troupe::checkpoint {

class Reader {
 public:
  /// `folder`: that of one checkpoint, whose manifest has been read. Error: `damaged` where a shard is missing, of another
  /// size, or its header another one, by name.
  static Expected<Reader> open(Storage& storage, const std::string& folder, Manifest manifest, Access access = Access::direct);

  const Manifest& manifest() const { return manifest_; }
  /// Reads an extent of a tensor of the manifest into `into`, which has room for its bytes rounded up to
  /// storage_alignment and begins at a multiple of it. Thread-safe. Error: `damaged`, naming file, tensor, extent and
  /// block, or what the system says when it reads it.
  Status read(const StoredTensor& tensor, const StoredExtent& extent, std::byte* into) const;
  /// Reads `part` of a tensor, which need not be an extent of it, into a row-major buffer of `part`. Reads whole extents,
  /// one at a time.
  Status read_part(const StoredTensor& tensor, const Extent& part, std::byte* into) const;
  /// Reads everything. Answers one line for each thing that is wrong: file, tensor, block.
  std::vector<std::string> verify(Parallel& parallel) const;

 private:
  Reader() = default;
  /// Reads an extent and checks nothing.
  Status fetch(const StoredTensor& tensor, const StoredExtent& extent, std::byte* into) const;
  /// What is to be said of a block that is not what was written.
  std::string damage(const StoredTensor& tensor, const StoredExtent& extent, std::size_t block) const;

  std::string folder_;
  Manifest manifest_;
  std::vector<std::shared_ptr<File>> files_;
};

/// How a tensor of two checkpoints differs.
struct TensorDifference {
  std::string name;
  enum class Kind : std::uint8_t { same, values, missing_in_a, missing_in_b, shape, dtype } kind = Kind::same;
  std::int64_t elements = 0;           ///< that differ in their bits
  double greatest = 0;                 ///< |a - b|; infinite where one of them is not finite
};
/// Tensor by tensor, in the order of names, whatever the extents of either. Memory: two tensors.
Expected<std::vector<TensorDifference>> diff(const Reader& a, const Reader& b);

}  // namespace troupe::checkpoint
