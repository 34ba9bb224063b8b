// Shard: one place's file of a checkpoint, a safetensors file (Hugging Face) whose tensors are extents.
//
// Keys are `name[lo:hi,...]`. Every extent begins at a multiple of 4 KiB, so that it can be written from and read into
// memory directly; gaps are U8 tensors `__pad__.N`, because readers of safetensors refuse holes and trailing bytes.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "devices/base/storage.h"

namespace troupe::checkpoint {

/// "model.norm.weight[0:192]"; a scalar's is "name[]".
std::string key_of(const std::string& name, const Extent& extent);

/// One extent of a shard that is to be written.
struct ShardEntry {
  std::string parameter;
  TensorKind kind = TensorKind::parameter;
  DType dtype = DType::f32;
  Shape shape;              ///< of the whole tensor
  Extent extent;            ///< not empty
  std::int64_t offset = 0;  ///< in the data section, a multiple of storage_alignment
  bool finite = true;       ///< while it is written another value ruins it
  std::int64_t bytes() const { return extent.elements() * size_of(dtype); }
  bool operator==(const ShardEntry&) const = default;
};

/// Lays entries one after the other in their order: fills in `offset`. Returns the bytes of the data section (a
/// multiple of storage_alignment, gaps included). REQUIRES extents that are not empty, and no sum64.
std::int64_t lay_out(std::vector<ShardEntry>& entries);

/// The header of a shard with these entries (as lay_out placed them), padded with spaces to a multiple of
/// storage_alignment. Its `__metadata__` has the stamp: {"troupe.job", "troupe.generation", "troupe.step"}.
std::vector<std::byte> shard_header(const std::vector<ShardEntry>& entries, const Stamp& stamp);

/// The format's word for a dtype: "F32".
const char* safetensors_dtype(DType dtype);
/// Readers of safetensors refuse a longer header.
inline constexpr std::int64_t safetensors_header_bytes = 100'000'000;

/// A tensor as a safetensors header describes it.
struct SafeTensor {
  std::string name;
  std::string dtype;  ///< "F32", "BF16", ...: the format's own words
  Shape shape;
  std::int64_t begin = 0, end = 0;  ///< bytes from the file's begin
};
struct SafeTensorsHeader {
  std::int64_t data_offset = 0;
  std::vector<SafeTensor> tensors;  ///< by (`begin`, `end`)
  std::vector<std::pair<std::string, std::string>> metadata;
};
/// Reads and checks the header of any safetensors file, ours or not: lengths, dtypes, shapes that fit their bytes, no
/// overlap, no hole, nothing after the last tensor. Error: `invalid`, naming the file and the key.
Expected<SafeTensorsHeader> read_safetensors_header(Storage& storage, const std::string& path);

/// The part of a manifest that describes one place's shard.
struct ShardRecord {
  StoredFile file;
  std::vector<StoredTensor> tensors;  ///< their extents' `file` is 0
};
/// A record as a message (manifest.capnp), and back. Error of decoding: `invalid`.
std::vector<std::byte> encode(const ShardRecord& record);
Expected<ShardRecord> decode_shard_record(const std::vector<std::byte>& bytes);
/// `head` with the files and tensors of all places' records; files by name, extents by where they begin. Error:
/// `invalid`, for records that disagree about a tensor, or from validate().
Expected<Manifest> merge(Manifest head, const std::vector<ShardRecord>& records);

}  // namespace troupe::checkpoint
