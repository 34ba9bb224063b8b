#include "checkpoint/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "checkpoint/requests.h"
#include "checkpoint/shard.h"
#include "devices/base/check.h"
#include "devices/host_memory.h"
#include "devices/parallel.h"

namespace troupe::checkpoint {

namespace {

std::int64_t bytes_of(const StoredTensor& tensor, const StoredExtent& extent) {
  return extent.extent.elements() * size_of(tensor.dtype);
}
std::int64_t room_for(const StoredTensor& tensor, const StoredExtent& extent) {
  return aligned(bytes_of(tensor, extent), storage_alignment);
}

Status damaged(std::string what) { return {Code::damaged, std::move(what)}; }

Status check_shard(File& file, const StoredFile& expected) {
  TROUPE_ASSIGN(const std::int64_t size, file.size());
  if (size != expected.bytes) return damaged(fmt::format("{} bytes are there, {} were written", size, expected.bytes));
  TROUPE_ASSIGN(const auto header, allocate_host(static_cast<std::size_t>(expected.data_offset)));
  TROUPE_TRY(file.read_at(0, header->data(), expected.data_offset));
  if (checksum(header->data(), expected.data_offset) != expected.header)
    return damaged("its header is another one than was written: the file is damaged, or of another checkpoint");
  return {};
}

std::vector<StoredRun> runs_of(const std::vector<ExtentRead>& wanted) {
  std::vector<StoredRun> runs;
  for (const ExtentRead& w : wanted) runs.push_back({w.extent->file, w.extent->offset, bytes_of(*w.tensor, *w.extent)});
  return runs;
}

/// Memory that checking a checkpoint takes, where no extent is larger.
constexpr std::int64_t verify_bytes = std::int64_t{64} << 20;

}  // namespace

Expected<CheckpointReader> CheckpointReader::open(Storage& storage, const std::string& folder, Manifest manifest,
                                                  const std::set<std::int32_t>* files) {
  CheckpointReader reader;
  reader.files_.resize(manifest.files.size());
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    if (files && !files->count(static_cast<std::int32_t>(i))) continue;
    const std::string path = folder + "/" + manifest.files[i].name;
    auto file = storage.open(path, Access::direct);
    if (!file.ok()) return damaged(file.status().message());
    TROUPE_TRY(check_shard(**file, manifest.files[i]).in("'" + path + "'"));
    reader.files_[i] = *std::move(file);
  }
  reader.folder_ = folder;
  reader.manifest_ = std::move(manifest);
  return reader;
}

std::int64_t lay_out_reads(std::vector<ExtentRead>& wanted) {
  std::sort(wanted.begin(), wanted.end(), [](const ExtentRead& a, const ExtentRead& b) {
    return std::tie(a.extent->file, a.extent->offset) < std::tie(b.extent->file, b.extent->offset);
  });
  std::int64_t end = 0;
  for (ExtentRead& w : wanted) {
    w.at = end;
    end = aligned(end + bytes_of(*w.tensor, *w.extent), storage_alignment);
  }
  return end;
}

Status CheckpointReader::fetch(std::int32_t file, std::int64_t offset, std::int64_t bytes, std::byte* into) const {
  const auto f = static_cast<std::size_t>(file);
  REQUIRE(files_[f], folder_, manifest_.files[f].name);  // open() left this file out
  // the last padding may be absent
  return files_[f]->read_at(offset, into, std::min(bytes, manifest_.files[f].bytes - offset));
}

std::string CheckpointReader::where(const ExtentRead& w) const {
  return "'" + folder_ + "/" + manifest_.files[static_cast<std::size_t>(w.extent->file)].name +
         "': " + key_of(w.tensor->name(), w.extent->extent);
}

std::vector<std::string> CheckpointReader::check(const std::vector<ExtentRead>& wanted, Padding padding,
                                                 std::byte* into, Parallel& parallel) const {
  const auto requests = cut_requests(runs_of(wanted));
  std::vector<std::vector<std::string>> wrong(requests.size());
  parallel.for_each(std::ssize(requests), [&](std::int64_t i) {
    const IoRequest& t = requests[static_cast<std::size_t>(i)];
    const auto address = [&](const RequestBlock& b) {
      return into + wanted[b.run].at + (b.offset - wanted[b.run].extent->offset);
    };
    const bool whole = fetch(t.file, t.offset, t.bytes, address(t.blocks.front())).ok();
    for (const RequestBlock& b : t.blocks) {
      const ExtentRead& w = wanted[b.run];
      const std::int64_t there = manifest_.files[static_cast<std::size_t>(t.file)].bytes - b.offset,
                         end = padding == Padding::ignored ? b.bytes
                                                           : std::min(aligned(b.bytes, storage_alignment), there);
      // A block that the disk cannot read counts as damaged. Its neighbours may be good: each is then read by itself.
      if (const Status s = whole ? Status{} : fetch(t.file, b.offset, end, address(b)); !s.ok())
        wrong[static_cast<std::size_t>(i)].push_back(where(w) + ": " + s.message());
      else if (checksum(address(b), b.bytes) != w.extent->blocks[b.index])
        wrong[static_cast<std::size_t>(i)].push_back(fmt::format(
            "{} is damaged in block {}, bytes {} to {} of the file", where(w), b.index, b.offset, b.offset + b.bytes));
      else if (std::any_of(address(b) + b.bytes, address(b) + end, [](std::byte x) { return x != std::byte{}; }))
        wrong[static_cast<std::size_t>(i)].push_back(
            fmt::format("{} is damaged in the padding of block {}, which must be zero: bytes {} to {} of the file",
                        where(w), b.index, b.offset + b.bytes, b.offset + end));
    }
  });
  std::vector<std::string> lines;
  for (auto& w : wrong) lines.insert(lines.end(), std::make_move_iterator(w.begin()), std::make_move_iterator(w.end()));
  return lines;
}

Status CheckpointReader::read(const std::vector<ExtentRead>& wanted, std::byte* into, Parallel& parallel) const {
  const auto wrong = check(wanted, Padding::ignored, into, parallel);
  return wrong.empty() ? Status() : damaged(wrong.front());
}

Status CheckpointReader::read_part(const StoredTensor& tensor, const Extent& part, std::byte* into) const {
  std::vector<std::pair<const StoredExtent*, Extent>> pieces;
  std::int64_t room = 0;
  for (const auto& e : tensor.extents)
    if (Extent shared = intersect(e.extent, part); !shared.empty()) {
      pieces.emplace_back(&e, std::move(shared));
      room = std::max(room, room_for(tensor, e));
    }
  TROUPE_ASSIGN(const auto buffer, allocate_host(static_cast<std::size_t>(room)));
  SerialParallel serial;
  for (const auto& [extent, shared] : pieces) {
    TROUPE_TRY(read({{&tensor, extent, 0}}, buffer->data(), serial));
    copy_extent(shared, buffer->data(), extent->extent, into, part, size_of(tensor.dtype));
  }
  return {};
}

std::vector<std::string> CheckpointReader::verify(Parallel& parallel) const {
  std::vector<ExtentRead> all;
  for (const auto& t : manifest_.tensors)
    for (const auto& e : t.extents) all.push_back({&t, &e, 0});
  lay_out_reads(all);
  std::int64_t room = verify_bytes;
  for (const ExtentRead& w : all) room = std::max(room, room_for(*w.tensor, *w.extent));
  const auto buffer = allocate_host(static_cast<std::size_t>(room));
  if (!buffer.ok()) return {buffer.status().message()};
  std::vector<std::string> wrong;
  for (auto begin = all.begin(); begin != all.end();) {  // as many extents at once as `room` holds
    const std::int64_t base = begin->at;
    auto end = begin;
    for (; end != all.end() && end->at - base + room_for(*end->tensor, *end->extent) <= room; ++end) end->at -= base;
    const auto lines = check({begin, end}, Padding::zero, (*buffer)->data(), parallel);
    wrong.insert(wrong.end(), lines.begin(), lines.end());
    begin = end;
  }
  return wrong;
}

}  // namespace troupe::checkpoint
