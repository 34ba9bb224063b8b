// Writer: writes a group's snapshots from the arena into its part of the place's shard of a checkpoint. A slot of the
// arena has the layout of the file (checkpoint/shard.h), so it is written as it lies, in large direct writes, while
// snapshots of later groups are still being copied.
//
// The disk may fail at any time, and training goes on: a write that fails is tried again, then the failure is reported
// to the session in the place of the record. It never fails the act.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "actors/executor.h"
#include "checkpoint/shard.h"

namespace troupe::actors {

/// What one writer writes of a shard: consecutive entries, as they lie in the data section.
struct ShardPart {
  std::size_t first = 0, end = 0;      ///< entries [first, end)
  std::int64_t offset = 0, bytes = 0;  ///< in the data section, padding included; bytes may be 0
};

struct ShardSpec {
  Storage* storage = nullptr;
  std::string dir;          ///< of the job's checkpoints (checkpoint/catalog.h)
  checkpoint::Stamp stamp;  ///< job and generation; each version has its own step
  std::int32_t rank = 0;
  std::vector<checkpoint::ShardEntry> entries;  ///< with the offsets of lay_out, part by part
  std::vector<ShardPart> parts;                 ///< one for each writer, at least one; consecutive, with all entries
  int attempts = 2;                             ///< of creating a file, and of each write
  /// How long updates have waited for the snapshots of a step so far; may be empty.
  std::function<std::int64_t(std::int64_t step)> stall_ns;
  /// A thread syncs the file when with its write so many bytes have been written since the last sync began. So no sync,
  /// which gives no sign of progress while it lasts, waits for more bytes than this times the threads that write.
  std::int64_t sync_bytes = std::int64_t{64} << 20;
  const Clock* clock = nullptr;          ///< null: no reports of Kind::saving
  std::int64_t tell_ns = 1'000'000'000;  ///< between two reports of Kind::saving
};

/// A place's shards under way, one for each version: the first writer actor of a version creates the file, the last one
/// syncs what is not synced yet and reports. Thread-safe. Reports:
///   Report::Kind::shard    once for each version, unless it is stopped. `bytes`: the encoded checkpoint::ShardRecord;
///                          or `name`: the failure, or, where `values` has a second element, the parameter of the first
///                          tensor that is not finite. `values`: [stall in seconds, checkpoint::TensorKind of that
///                          tensor].
///   Report::Kind::saving   about every `tell_ns` while writes end, and when all are written. `values`: [stall so far
///                          in seconds, bytes of parameters, of moments that are written].
class ShardWriter {
 public:
  ShardWriter(ShardSpec spec, ReportSink report) : spec_(std::move(spec)), report_(std::move(report)) {}
  std::int64_t part_bytes(std::size_t part) const { return spec_.parts[part].bytes; }
  /// Writes one part of the version of `context.step` and computes its checksums. `data`: the part's bytes, laid out as
  /// in the file. A failure is reported. Error: stopped() alone. It comes after at most one request, or one sync, of
  /// each thread; the version is then not whole, and where its last part is stopped nothing is reported of it.
  Status write(const ActContext& context, std::size_t part, const std::byte* data, Parallel& parallel);

 private:
  /// Bytes that are written, synced or not.
  struct Written {
    double parameters = 0, moments = 0;
  };
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct UnderWay {
    std::unique_ptr<File> file;
    checkpoint::StoredFile record;
    std::vector<std::vector<checkpoint::Checksum>> sums;  // by entry
    std::size_t left = 0;                                 // parts
    Written written;
    std::int64_t unsynced = 0;  // bytes written since the last sync before the end began
    std::int64_t told_ns = 0;
    Status failure;             // the first; nothing is written after it
    std::size_t ruined = none;  // the first entry that is not finite
  };
  /// Returns the version's shard, whose file the first call creates, and whether no write has failed so far.
  std::pair<UnderWay&, bool> join(std::int64_t step);
  Status create(std::int64_t step, UnderWay& shard) const;
  Status write_part(const ActContext& context, UnderWay& shard, std::size_t part, const std::byte* data,
                    Parallel& parallel);
  /// Returns the checksum of a block of entry `index`, and notes whether its values are finite while they are in the
  /// cache.
  checkpoint::Checksum look_at(UnderWay& shard, std::size_t index, const std::byte* block, std::int64_t bytes);
  /// Syncs the file if with these bytes sync_bytes have been written since the last sync began.
  Status sync_on_the_way(UnderWay& shard, std::int64_t bytes);
  /// Adds `more` to what is written, and reports it if tell_ns have passed or with `all`.
  void tell(const ActContext& context, UnderWay& shard, Written more, bool all);
  double stall_s(std::int64_t step) const {
    return spec_.stall_ns ? static_cast<double>(spec_.stall_ns(step)) * 1e-9 : 0;
  }
  Expected<checkpoint::ShardRecord> finish(std::int64_t step, UnderWay& shard) const;
  std::string folder(std::int64_t step) const;

  const ShardSpec spec_;
  const ReportSink report_;
  std::mutex mutex_;
  std::map<std::int64_t, UnderWay> under_way_;  // by step
};

class WriterBody final : public Body {
 public:
  /// Writes part `part` of each shard; `in`: the snapshots' arena.
  WriterBody(std::shared_ptr<ShardWriter> shards, std::size_t part, PortMemory in)
      : shards_(std::move(shards)), part_(part), in_(in) {}
  Status run(const ActContext& context, Parallel& parallel) override;

 private:
  std::shared_ptr<ShardWriter> shards_;
  std::size_t part_;
  PortMemory in_;
};

}  // namespace troupe::actors
