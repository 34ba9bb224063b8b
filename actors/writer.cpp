#include "actors/writer.h"

#include <algorithm>
#include <mutex>

#include "checkpoint/catalog.h"

namespace troupe::actors {

using checkpoint::Checksum;
using checkpoint::ShardEntry;
using checkpoint::ShardRecord;

namespace {

/// Large enough for any disk, small enough that several threads share a slot.
constexpr std::int64_t write_bytes = std::int64_t{8} << 20;

/// A run of the data section that lies in one slot.
struct Chunk {
  const std::byte* data = nullptr;
  std::int64_t offset = 0, bytes = 0;
};

/// The entries as tensors of a manifest, one extent after the other.
std::vector<checkpoint::StoredTensor> tensors_of(const std::vector<ShardEntry>& entries, std::int64_t data_offset,
                                                 std::vector<std::vector<Checksum>> sums) {
  std::vector<checkpoint::StoredTensor> out;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const ShardEntry& e = entries[i];
    if (out.empty() || out.back().parameter != e.parameter || out.back().kind != e.kind)
      out.push_back({e.parameter, e.kind, e.dtype, e.shape, {}});
    out.back().extents.push_back({e.extent, 0, data_offset + e.offset, std::move(sums[i])});
  }
  return out;
}

}  // namespace

Status WriterBody::run(const ActContext& c, Parallel& par) {
  const double stall_s = spec_.stall_ns ? static_cast<double>(spec_.stall_ns(c.step)) * 1e-9 : 0;
  auto record = write(c, par, false);
  for (int attempt = 1; !record.ok() && attempt < spec_.attempts; ++attempt) record = write(c, par, true);
  Report report{Report::Kind::shard, "", c.step, -1, {stall_s}, {}};
  if (record.ok()) report.bytes = checkpoint::encode(*record);
  else report.name = record.status().message();
  report_(c.program, std::move(report));
  return {};
}

Expected<ShardRecord> WriterBody::write(const ActContext& c, Parallel& par, bool again) const {
  checkpoint::Stamp stamp = spec_.stamp;
  stamp.step = c.step;
  const std::string folder = spec_.dir + "/" + checkpoint::folder_name(c.step, stamp.generation);
  const std::string name = checkpoint::shard_name(spec_.rank), path = folder + "/" + name;
  TROUPE_TRY(spec_.storage->make_dir(folder));
  if (const Status s = again ? spec_.storage->remove(path) : Status{}; !s.ok() && s.code() != Code::not_found) return s;
  TROUPE_ASSIGN(const auto file, spec_.storage->create(path, Access::direct));
  const auto header = checkpoint::shard_header(spec_.entries, stamp);
  const auto data_offset = static_cast<std::int64_t>(header.size());
  TROUPE_TRY(file->write_at(0, header.data(), data_offset));
  std::vector<std::vector<Checksum>> sums(spec_.entries.size());
  TROUPE_TRY(write_data(c, *file, data_offset, sums, par));
  TROUPE_TRY(file->sync());
  TROUPE_TRY(spec_.storage->sync_dir(folder));
  std::int64_t bytes = data_offset;
  for (auto b : spec_.bytes) bytes += b;
  return ShardRecord{{name, bytes, data_offset, checkpoint::checksum(header.data(), data_offset)}, tensors_of(spec_.entries, data_offset, std::move(sums))};
}

Status WriterBody::write_data(const ActContext& c, File& file, std::int64_t data_offset, std::vector<std::vector<Checksum>>& sums,
                              Parallel& par) const {
  std::vector<Chunk> chunks;
  std::vector<const std::byte*> slots;
  std::vector<std::int64_t> begins;   // of ports, in the data section
  std::int64_t at = 0;
  for (std::size_t p = 0; p < spec_.in.size(); ++p) {
    slots.push_back(spec_.in[p].at(c.act.in[p].token.slot));
    begins.push_back(at);
    for (std::int64_t b = 0; b < spec_.bytes[p]; b += write_bytes)
      chunks.push_back({slots[p] + b, at + b, std::min(write_bytes, spec_.bytes[p] - b)});
    at += spec_.bytes[p];
  }
  // Writing and summing up take turns, so that the one waits for the disk while the other computes.
  const auto n = static_cast<std::int64_t>(std::max(chunks.size(), spec_.entries.size()));
  std::mutex mutex;
  Status failure;
  par.for_each(2 * n, [&](std::int64_t i) {
    const auto k = static_cast<std::size_t>(i / 2);
    if (i % 2 == 0 && k < chunks.size()) {
      {
        std::lock_guard lock(mutex);
        if (!failure.ok()) return;
      }
      Status s = file.write_at(data_offset + chunks[k].offset, chunks[k].data, chunks[k].bytes);
      std::lock_guard lock(mutex);
      if (failure.ok()) failure = std::move(s);
    } else if (i % 2 == 1 && k < spec_.entries.size()) {
      const ShardEntry& e = spec_.entries[k];
      const auto port = static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), e.offset) - begins.begin()) - 1;
      sums[k] = checkpoint::block_checksums(slots[port] + (e.offset - begins[port]), e.bytes());
    }
  });
  return failure;
}

}  // namespace troupe::actors
