#include "actors/writer.h"

#include <algorithm>
#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/requests.h"
#include "kernels/digest.h"

namespace troupe::actors {

using checkpoint::Checksum;
using checkpoint::ShardEntry;
using checkpoint::ShardRecord;
using checkpoint::StoredTensor;

namespace {

/// The entries as tensors of a manifest, one extent after the other.
std::vector<StoredTensor> tensors_of(const std::vector<ShardEntry>& entries, std::int64_t data_offset,
                                     std::vector<std::vector<Checksum>> sums) {
  std::vector<StoredTensor> out;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const ShardEntry& e = entries[i];
    if (out.empty() || out.back().parameter != e.parameter || out.back().kind != e.kind)
      out.push_back({e.parameter, e.kind, e.dtype, e.shape, {}});
    out.back().extents.push_back({e.extent, 0, data_offset + e.offset, std::move(sums[i])});
  }
  return out;
}

/// Calls at most `times` times, until a call succeeds or finds the disk full (Code::exhausted). Returns the first
/// failure where none has succeeded. REQUIRES: times > 0.
template <class Call>
Status attempt(int times, Call call) {
  Status first;
  for (int i = 0; i < times; ++i) {
    const Status s = call();
    if (s.ok()) return s;
    if (first.ok()) first = s;
    if (s.code() == Code::exhausted) break;
  }
  return first;
}

}  // namespace

Status WriterBody::run(const ActContext& c, Parallel& par) {
  return shards_->write(c, part_, in_.at(c.act.in[0].token.slot), par);
}

std::string ShardWriter::folder(std::int64_t step) const {
  return spec_.dir + "/" + checkpoint::folder_name(step, spec_.stamp.generation);
}

Status ShardWriter::write(const ActContext& c, std::size_t part, const std::byte* data, Parallel& par) {
  auto [shard, well] = join(c.step);
  Status s = well ? write_part(c, shard, part, data, par) : Status{};
  const Status stop = par.stopping() ? stopped() : Status{};
  if (s.ok()) s = stop;
  {
    std::lock_guard lock(mutex_);
    if (shard.failure.ok()) shard.failure = s;
    if (--shard.left > 0) return stop;
    if (!stop.ok()) {
      under_way_.erase(c.step);
      return stop;
    }
  }
  tell(c, shard, {}, true);
  Report report{Report::Kind::shard, "", c.step, -1, {stall_s(c.step)}, {}};
  if (shard.ruined != none) {
    report.name = spec_.entries[shard.ruined].parameter;
    report.values.push_back(static_cast<double>(spec_.entries[shard.ruined].kind));
  } else if (const auto record = finish(c.step, shard); record.ok()) report.bytes = checkpoint::encode(*record);
  else report.name = record.status().message();
  {
    std::lock_guard lock(mutex_);
    under_way_.erase(c.step);
  }
  report_(c.program, std::move(report));
  return {};
}

std::pair<ShardWriter::UnderWay&, bool> ShardWriter::join(std::int64_t step) {
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

Status ShardWriter::create(std::int64_t step, UnderWay& shard) const {
  checkpoint::Stamp stamp = spec_.stamp;
  stamp.step = step;
  const std::string name = checkpoint::shard_name(spec_.rank), path = folder(step) + "/" + name;
  TROUPE_TRY(spec_.storage->make_dir(folder(step)));
  // Removes the file of this object's earlier attempt only, never a file that another process has created.
  if (std::exchange(shard.file, nullptr)) TROUPE_TRY(spec_.storage->remove(path));
  TROUPE_ASSIGN(shard.file, spec_.storage->create(path, Access::direct));
  const auto header = checkpoint::shard_header(spec_.entries, stamp);
  const std::int64_t header_bytes = std::ssize(header),
                     data_bytes = spec_.parts.back().offset + spec_.parts.back().bytes;
  shard.record = {name, header_bytes + data_bytes, header_bytes, checkpoint::checksum(header.data(), header_bytes)};
  TROUPE_TRY(shard.file->reserve(shard.record.bytes));
  return shard.file->write_at(0, header.data(), header_bytes);
}

Status ShardWriter::write_part(const ActContext& c, UnderWay& shard, std::size_t part, const std::byte* data,
                               Parallel& par) {
  const ShardPart& p = spec_.parts[part];
  std::vector<checkpoint::StoredRun> runs;
  for (std::size_t i = p.first; i < p.end; ++i) {
    const ShardEntry& e = spec_.entries[i];
    runs.push_back({0, e.offset, e.bytes()});
    shard.sums[i].resize(static_cast<std::size_t>((e.bytes() + checkpoint::block_bytes - 1) / checkpoint::block_bytes));
  }
  const auto requests = checkpoint::cut_requests(runs);
  std::mutex mutex;
  Status failure;
  par.for_each(std::ssize(requests), [&](std::int64_t i) {
    if (par.stopping()) return;  // the caller sees it, too
    const checkpoint::IoRequest& t = requests[static_cast<std::size_t>(i)];
    for (const auto& b : t.blocks)
      shard.sums[p.first + b.run][b.index] = look_at(shard, p.first + b.run, data + (b.offset - p.offset), b.bytes);
    {
      std::lock_guard lock(mutex);
      if (!failure.ok()) return;
    }
    Status s = attempt(spec_.attempts, [&] {
      return shard.file->write_at(shard.record.data_offset + t.offset, data + (t.offset - p.offset), t.bytes);
    });
    if (s.ok() && !par.stopping()) s = sync_on_the_way(shard, t.bytes);
    if (s.ok()) {
      Written more;
      for (const auto& b : t.blocks)
        (spec_.entries[p.first + b.run].kind == checkpoint::TensorKind::parameter ? more.parameters : more.moments) +=
            static_cast<double>(b.bytes);
      return tell(c, shard, more, false);
    }
    std::lock_guard lock(mutex);
    if (failure.ok()) failure = s;
  });
  return failure;
}

Checksum ShardWriter::look_at(UnderWay& shard, std::size_t index, const std::byte* block, std::int64_t bytes) {
  const ShardEntry& e = spec_.entries[index];
  if (e.finite && e.dtype == DType::f32 &&
      !kernels::all_finite(reinterpret_cast<const float*>(block), bytes / static_cast<std::int64_t>(sizeof(float)))) {
    std::lock_guard lock(mutex_);
    shard.ruined = std::min(shard.ruined, index);
  }
  return checkpoint::checksum(block, bytes);
}

Status ShardWriter::sync_on_the_way(UnderWay& shard, std::int64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    shard.unsynced += bytes;
    if (shard.unsynced < spec_.sync_bytes) return {};
    shard.unsynced = 0;
  }
  return shard.file->sync();  // not tried again: see `finish`
}

void ShardWriter::tell(const ActContext& c, UnderWay& shard, Written more, bool all) {
  if (!spec_.clock) return;
  std::unique_lock lock(mutex_);
  shard.written.parameters += more.parameters;
  shard.written.moments += more.moments;
  const auto now_ns = spec_.clock->now_ns();
  if (!shard.failure.ok() || (!all && now_ns - shard.told_ns < spec_.tell_ns)) return;
  shard.told_ns = now_ns;
  Report report{Report::Kind::saving, "", c.step, -1, {0, shard.written.parameters, shard.written.moments}, {}};
  lock.unlock();
  report.values[0] = stall_s(c.step);
  report_(c.program, std::move(report));
}

Expected<ShardRecord> ShardWriter::finish(std::int64_t step, UnderWay& shard) const {
  TROUPE_TRY(shard.failure);
  // A sync that has failed is not tried again: it leaves unknown which of the bytes written before it are on the disk.
  TROUPE_TRY(shard.file->sync());
  TROUPE_TRY(spec_.storage->sync_dir(folder(step)));
  return ShardRecord{shard.record, tensors_of(spec_.entries, shard.record.data_offset, std::move(shard.sums))};
}

}  // namespace troupe::actors
