#include "actors/writer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/transfers.h"

namespace troupe::actors {

using checkpoint::Checksum;
using checkpoint::ShardEntry;
using checkpoint::ShardRecord;
using checkpoint::StoredTensor;

namespace {

/// The entries as tensors of a manifest, one extent after the other.
std::vector<StoredTensor> tensors_of(const std::vector<ShardEntry>& entries, std::int64_t data_offset, std::vector<std::vector<Checksum>> sums) {
  std::vector<StoredTensor> out;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const ShardEntry& e = entries[i];
    if (out.empty() || out.back().parameter != e.parameter || out.back().kind != e.kind)
      out.push_back({e.parameter, e.kind, e.dtype, e.shape, {}});
    out.back().extents.push_back({e.extent, 0, data_offset + e.offset, std::move(sums[i])});
  }
  return out;
}

/// Until it works, or has failed so often.
template <class Call>
Status attempt(int times, Call call) {
  Status s = call();
  for (int i = 1; !s.ok() && i < times; ++i) s = call();
  return s;
}

}  // namespace

Status WriterBody::run(const ActContext& c, Parallel& par) {
  shards_->write(c, part_, in_.at(c.act.in[0].token.slot), par);
  return {};
}

std::string Shards::folder(std::int64_t step) const { return spec_.dir + "/" + checkpoint::folder_name(step, spec_.stamp.generation); }

void Shards::write(const ActContext& c, std::size_t part, const std::byte* data, Parallel& par) {
  auto [shard, well] = begin(c.step);
  const Status s = well ? attempt(spec_.attempts, [&, &shard = shard] { return write_part(shard, part, data, par); }) : Status{};
  {
    std::unique_lock lock(mutex_);
    if (shard.failure.ok()) shard.failure = s;
    if (--shard.left > 0) {
      auto progress = count(c.step, shard, part);
      lock.unlock();
      if (progress) report_(c.program, *std::move(progress));
      return;
    }
  }
  Report report{Report::Kind::shard, "", c.step, -1, {stall_s(c.step)}, {}};
  if (const auto record = finish(c.step, shard); record.ok()) report.bytes = checkpoint::encode(*record);
  else report.name = record.status().message();
  {
    std::lock_guard lock(mutex_);
    under_way_.erase(c.step);
  }
  report_(c.program, std::move(report));
}

std::pair<Shards::UnderWay&, bool> Shards::begin(std::int64_t step) {
  std::lock_guard lock(mutex_);
  const auto [at, is_new] = under_way_.try_emplace(step);
  UnderWay& shard = at->second;
  if (is_new) {
    shard.left = spec_.parts.size();
    shard.sums.resize(spec_.entries.size());
    if (spec_.clock) shard.told_ns = spec_.clock->now_ns();
    shard.failure = attempt(spec_.attempts, [&] { return create(step, shard); });
  }
  return {shard, shard.failure.ok()};
}

Status Shards::create(std::int64_t step, UnderWay& shard) const {
  checkpoint::Stamp stamp = spec_.stamp;
  stamp.step = step;
  const std::string name = checkpoint::shard_name(spec_.rank), path = folder(step) + "/" + name;
  TROUPE_TRY(spec_.storage->make_dir(folder(step)));
  if (std::exchange(shard.file, nullptr)) TROUPE_TRY(spec_.storage->remove(path));   // of an attempt before; nobody else's is removed
  TROUPE_ASSIGN(shard.file, spec_.storage->create(path, Access::direct));
  const auto header = checkpoint::shard_header(spec_.entries, stamp);
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  shard.record = {name, std::accumulate(spec_.parts.begin(), spec_.parts.end(), header_bytes), header_bytes, checkpoint::checksum(header.data(), header_bytes)};
  return shard.file->write_at(0, header.data(), header_bytes);
}

Status Shards::write_part(UnderWay& shard, std::size_t part, const std::byte* data, Parallel& par) const {
  const auto [first, last] = entries_of(part);
  const std::int64_t begin = first < last ? spec_.entries[first].offset : 0;
  std::vector<checkpoint::StoredRun> runs;
  for (std::size_t i = first; i < last; ++i) {
    const ShardEntry& e = spec_.entries[i];
    runs.push_back({0, e.offset, e.bytes()});
    shard.sums[i].resize(static_cast<std::size_t>((e.bytes() + checkpoint::block_bytes - 1) / checkpoint::block_bytes));
  }
  const auto transfers = checkpoint::cut_transfers(runs);
  std::mutex mutex;
  Status failure;
  par.for_each(std::ssize(transfers), [&](std::int64_t i) {
    const checkpoint::Transfer& t = transfers[static_cast<std::size_t>(i)];
    for (const auto& b : t.blocks) shard.sums[first + b.run][b.index] = checkpoint::checksum(data + (b.offset - begin), b.bytes);
    {
      std::lock_guard lock(mutex);
      if (!failure.ok()) return;
    }
    Status s = shard.file->write_at(shard.record.data_offset + t.offset, data + (t.offset - begin), t.bytes);
    std::lock_guard lock(mutex);
    if (failure.ok()) failure = std::move(s);
  });
  return failure;
}

std::pair<std::size_t, std::size_t> Shards::entries_of(std::size_t part) const {
  const std::int64_t begin = std::accumulate(spec_.parts.begin(), spec_.parts.begin() + static_cast<std::ptrdiff_t>(part), std::int64_t{0});
  const auto at = [&](std::int64_t offset) {
    const auto it = std::lower_bound(spec_.entries.begin(), spec_.entries.end(), offset, [](const ShardEntry& e, std::int64_t o) { return e.offset < o; });
    return static_cast<std::size_t>(it - spec_.entries.begin());
  };
  return {at(begin), at(begin + spec_.parts[part])};
}

std::optional<Report> Shards::count(std::int64_t step, UnderWay& shard, std::size_t part) const {
  const auto [first, last] = entries_of(part);
  for (std::size_t i = first; i < last; ++i)
    (spec_.entries[i].kind == checkpoint::TensorKind::parameter ? shard.parameter_bytes : shard.moment_bytes) += static_cast<double>(spec_.entries[i].bytes());
  if (!spec_.clock || !shard.failure.ok() || spec_.clock->now_ns() - shard.told_ns < spec_.tell_ns) return {};
  shard.told_ns = spec_.clock->now_ns();
  return Report{Report::Kind::saving, "", step, -1, {stall_s(step), shard.parameter_bytes, shard.moment_bytes}, {}};
}

Expected<ShardRecord> Shards::finish(std::int64_t step, UnderWay& shard) const {
  TROUPE_TRY(shard.failure);
  // A sync that has failed is not tried again: nobody knows then which of the bytes written before it are there.
  TROUPE_TRY(shard.file->sync());
  TROUPE_TRY(spec_.storage->sync_dir(folder(step)));
  return ShardRecord{shard.record, tensors_of(spec_.entries, shard.record.data_offset, std::move(shard.sums))};
}

}  // namespace troupe::actors
