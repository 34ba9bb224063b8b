// Reader: the bytes of a checkpoint, whole blocks only, each checked before anybody sees it.
#pragma once

#include <memory>
#include <set>

#include "checkpoint/manifest.h"
#include "devices/base/storage.h"
#include "devices/device.h"

namespace troupe::checkpoint {

/// An extent that is to be read, and where it goes.
struct ExtentRead {
  const StoredTensor* tensor = nullptr;
  const StoredExtent* extent = nullptr;
  std::int64_t at = 0;                 ///< bytes from a buffer's begin
};
/// Sorts by where extents lie in files and places them in a buffer: what are neighbours in a file are neighbours there, and
/// everything begins at a multiple of storage_alignment. Answers the buffer's bytes, a multiple of that.
std::int64_t lay_out_reads(std::vector<ExtentRead>& wanted);

class Reader {
 public:
  /// `folder`: that of one checkpoint, whose manifest has been read. `files`: those that will be read (null: all), for of a thousand
  /// places each needs a few. Error: `damaged` where such a shard is missing, of another size, or its header another one, by name.
  static Expected<Reader> open(Storage& storage, const std::string& folder, Manifest manifest, const std::set<std::int32_t>* files = nullptr);

  const Manifest& manifest() const { return manifest_; }
  /// Reads extents of the manifest, as lay_out_reads() placed them, into a buffer that begins at a multiple of storage_alignment; checks
  /// every block. Reentrant. Error: `damaged`, naming file, tensor, extent and block, or what the system says when it
  /// reads it.
  Status read(const std::vector<ExtentRead>& wanted, std::byte* into, Parallel& parallel) const;
  /// Reads `part` of a tensor, which need not be an extent of it, into a row-major buffer of `part`. Reads whole extents,
  /// one at a time.
  Status read_part(const StoredTensor& tensor, const Extent& part, std::byte* into) const;
  /// Reads everything. Answers one line for each thing that is wrong: file, tensor, block.
  std::vector<std::string> verify(Parallel& parallel) const;

 private:
  Reader() = default;
  /// Reads; answers what is wrong, by where it lies.
  std::vector<std::string> check(const std::vector<ExtentRead>& wanted, std::byte* into, Parallel& parallel) const;
  Status fetch(std::int32_t file, std::int64_t offset, std::int64_t bytes, std::byte* into) const;
  std::string where(const ExtentRead& wanted) const;

  std::string folder_;
  Manifest manifest_;
  std::vector<std::shared_ptr<File>> files_;   // null: not to be read
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
