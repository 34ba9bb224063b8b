// Writer: takes a group's snapshots from the arena to its part of the place's shard of a checkpoint. The arena's slots are laid
// out as the file is (checkpoint/shard.h), so they are written as they lie, in large direct writes, while later groups
// are still being copied.
//
// The disk may fail at any time, and training goes on: a failure is tried again, then reported to the session in the
// place of the record. It never fails the act.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "actors/act.h"
#include "checkpoint/shard.h"

namespace troupe::actors {

/// What one writer brings of a shard: entries that follow each other, as they lie in the data section.
struct ShardPart {
  std::size_t first = 0, end = 0;      ///< of the entries
  std::int64_t offset = 0, bytes = 0;  ///< in the data section, padding included; may be nothing
};

struct ShardSpec {
  Storage* storage = nullptr;
  std::string dir;                     ///< of the job's checkpoints (checkpoint/catalog.h)
  checkpoint::Stamp stamp;             ///< job and generation; each version has its own step
  std::int32_t rank = 0;
  std::vector<checkpoint::ShardEntry> entries;   ///< as lay_out placed them, part by part
  std::vector<ShardPart> parts;        ///< one for each writer, at least one: they follow each other and have all entries
  int attempts = 2;                    ///< of creating a file, and of each write
  /// How long updates have waited for the snapshots of a step so far; may be empty.
  std::function<std::int64_t(std::int64_t step)> stall_ns;
  const Clock* clock = nullptr;        ///< null: nobody wants to hear of a shard before it is whole
  std::int64_t tell_ns = 1'000'000'000;   ///< between two reports of how far one is
};

/// A place's shards under way, one for each version: the first writer that comes creates the file, the last one syncs it and
/// reports. Thread-safe. Reports:
///   Report::Kind::shard    once for each version. `bytes`: the encoded checkpoint::ShardRecord; or `name`: what went wrong, or,
///                          where `values` has a second element, the first parameter that is not finite.
///                          `values`: [stall in seconds].
///   Report::Kind::saving   about every `tell_ns` while writes end, and when all are written. `values`: [stall in seconds so far,
///                          bytes of parameters, of moments that are written].
class Shards {
 public:
  Shards(ShardSpec spec, ReportSink report) : spec_(std::move(spec)), report_(std::move(report)) {}
  std::int64_t part_bytes(std::size_t part) const { return spec_.parts[part].bytes; }
  /// Writes and sums up one part of a version. `data`: as it lies in the file.
  void write(const ActContext& context, std::size_t part, const std::byte* data, Parallel& parallel);

 private:
  /// Bytes that are on disk, but for a sync.
  struct Written {
    double parameters = 0, moments = 0;
  };
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct UnderWay {
    std::unique_ptr<File> file;
    checkpoint::StoredFile record;
    std::vector<std::vector<checkpoint::Checksum>> sums;   // by entry
    std::size_t left = 0;              // parts
    Written written;
    std::int64_t told_ns = 0;
    Status failure;                    // the first; nothing is written after it
    std::size_t ruined = none;         // the first entry of a parameter that is not finite
  };
  /// The version's file; whether all has gone well so far.
  std::pair<UnderWay&, bool> join(std::int64_t step);
  Status create(std::int64_t step, UnderWay& shard) const;
  Status write_part(const ActContext& context, UnderWay& shard, std::size_t part, const std::byte* data, Parallel& parallel);
  /// Checksums a block of entry `index`, and notes whether its values are finite while they are in the cache.
  checkpoint::Checksum look_at(UnderWay& shard, std::size_t index, const std::byte* block, std::int64_t bytes);
  /// So much more is written; says so if it is time to, or if that was all.
  void tell(const ActContext& context, UnderWay& shard, Written more, bool all);
  double stall_s(std::int64_t step) const { return spec_.stall_ns ? static_cast<double>(spec_.stall_ns(step)) * 1e-9 : 0; }
  Expected<checkpoint::ShardRecord> finish(std::int64_t step, UnderWay& shard) const;
  std::string folder(std::int64_t step) const;

  const ShardSpec spec_;
  const ReportSink report_;
  std::mutex mutex_;
  std::map<std::int64_t, UnderWay> under_way_;   // by step
};

class WriterBody final : public Body {
 public:
  /// `part` of the shards; `in`: the snapshots' arena.
  WriterBody(std::shared_ptr<Shards> shards, std::size_t part, PortMemory in) : shards_(std::move(shards)), part_(part), in_(in) {}
  Status run(const ActContext& context, Parallel& parallel) override;

 private:
  std::shared_ptr<Shards> shards_;
  std::size_t part_;
  PortMemory in_;
};

}  // namespace troupe::actors
