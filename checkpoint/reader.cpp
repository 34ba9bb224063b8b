#include "checkpoint/reader.h"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "checkpoint/shard.h"
#include "devices/host_memory.h"

namespace troupe::checkpoint {

namespace {

std::int64_t bytes_of(const StoredTensor& tensor, const StoredExtent& extent) { return extent.extent.elements() * size_of(tensor.dtype); }
std::int64_t room_for(const StoredTensor& tensor, const StoredExtent& extent) { return aligned(bytes_of(tensor, extent), storage_alignment); }

Status damaged(std::string what) { return {Code::damaged, std::move(what)}; }

Status check_shard(File& file, const StoredFile& expected) {
  TROUPE_ASSIGN(const std::int64_t size, file.size());
  if (size != expected.bytes) return damaged(std::to_string(size) + " bytes are there, " + std::to_string(expected.bytes) + " were written");
  TROUPE_ASSIGN(const auto header, allocate_host(static_cast<std::size_t>(expected.data_offset)));
  TROUPE_TRY(file.read_at(0, header->data(), expected.data_offset));
  if (checksum(header->data(), expected.data_offset) != expected.header)
    return damaged("its header is another one than was written: the file is damaged, or of another checkpoint");
  return {};
}

/// The blocks of an extent that are not what was written.
std::vector<std::size_t> damaged_blocks(const StoredExtent& extent, const std::byte* data, std::int64_t bytes) {
  std::vector<std::size_t> damaged;
  for (std::size_t b = 0; b < extent.blocks.size(); ++b) {
    const std::int64_t begin = static_cast<std::int64_t>(b) * block_bytes;
    if (checksum(data + begin, std::min(block_bytes, bytes - begin)) != extent.blocks[b]) damaged.push_back(b);
  }
  return damaged;
}

}  // namespace

Expected<Reader> Reader::open(Storage& storage, const std::string& folder, Manifest manifest, Access access) {
  Reader reader;
  for (const auto& f : manifest.files) {
    const std::string path = folder + "/" + f.name;
    auto file = storage.open(path, access);
    if (!file.ok()) return damaged(file.status().message());
    TROUPE_TRY(check_shard(**file, f).in("'" + path + "'"));
    reader.files_.push_back(*std::move(file));
  }
  reader.folder_ = folder;
  reader.manifest_ = std::move(manifest);
  return reader;
}

Status Reader::fetch(const StoredTensor& tensor, const StoredExtent& extent, std::byte* into) const {
  const auto file = static_cast<std::size_t>(extent.file);
  const std::int64_t left = manifest_.files[file].bytes - extent.offset;
  return files_[file]->read_at(extent.offset, into, std::min(room_for(tensor, extent), left));
}

std::string Reader::damage(const StoredTensor& tensor, const StoredExtent& extent, std::size_t block) const {
  const std::int64_t begin = extent.offset + static_cast<std::int64_t>(block) * block_bytes;
  const std::int64_t end = std::min(begin + block_bytes, extent.offset + bytes_of(tensor, extent));
  return "'" + folder_ + "/" + manifest_.files[static_cast<std::size_t>(extent.file)].name + "': " + key_of(tensor.name(), extent.extent) +
         " is damaged in block " + std::to_string(block) + ", bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of the file";
}

Status Reader::read(const StoredTensor& tensor, const StoredExtent& extent, std::byte* into) const {
  // What a disk does not give back any more is as lost as what it gives back wrong.
  if (const Status s = fetch(tensor, extent, into); !s.ok()) return damaged(s.in(key_of(tensor.name(), extent.extent)).message());
  const auto blocks = damaged_blocks(extent, into, bytes_of(tensor, extent));
  return blocks.empty() ? Status() : damaged(damage(tensor, extent, blocks.front()));
}

Status Reader::read_part(const StoredTensor& tensor, const Extent& part, std::byte* into) const {
  std::vector<std::pair<const StoredExtent*, Extent>> pieces;
  std::int64_t room = 0;
  for (const auto& e : tensor.extents)
    if (Extent shared = intersect(e.extent, part); !shared.empty()) {
      pieces.emplace_back(&e, std::move(shared));
      room = std::max(room, room_for(tensor, e));
    }
  TROUPE_ASSIGN(const auto buffer, allocate_host(static_cast<std::size_t>(room)));
  for (const auto& [extent, shared] : pieces) {
    TROUPE_TRY(read(tensor, *extent, buffer->data()));
    copy_extent(shared, buffer->data(), extent->extent, into, part, size_of(tensor.dtype));
  }
  return {};
}

std::vector<std::string> Reader::verify(Parallel& parallel) const {
  std::vector<std::pair<const StoredTensor*, const StoredExtent*>> pieces;
  std::int64_t room = 0;
  for (const auto& t : manifest_.tensors)
    for (const auto& e : t.extents) {
      pieces.emplace_back(&t, &e);
      room = std::max(room, room_for(t, e));
    }
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second->file, a.second->offset) < std::tie(b.second->file, b.second->offset);
  });
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (int i = 0; i < parallel.threads(); ++i) {
    auto buffer = allocate_host(static_cast<std::size_t>(room));
    if (!buffer.ok()) return {buffer.status().message()};
    buffers.push_back(*std::move(buffer));
  }
  std::vector<std::vector<std::string>> wrong(pieces.size());
  std::atomic<std::size_t> next{0};
  parallel.for_each(parallel.threads(), [&](std::int64_t thread) {
    std::byte* const data = buffers[static_cast<std::size_t>(thread)]->data();
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      const auto& [tensor, extent] = pieces[i];
      if (const Status s = fetch(*tensor, *extent, data); !s.ok()) wrong[i] = {s.message()};
      else for (const auto block : damaged_blocks(*extent, data, bytes_of(*tensor, *extent))) wrong[i].push_back(damage(*tensor, *extent, block));
    }
  });
  std::vector<std::string> lines;
  for (auto& w : wrong) lines.insert(lines.end(), std::make_move_iterator(w.begin()), std::make_move_iterator(w.end()));
  return lines;
}

}  // namespace troupe::checkpoint
