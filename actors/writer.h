// Writer: takes a place's snapshots from the arena to its shard of a checkpoint. The arena's slots are laid out as the
// file is (checkpoint/shard.h), so they are written as they lie, in large direct writes.
//
// The disk may fail at any time, and training goes on: a failure is tried again, then reported to the session in the
// place of the record. It never fails the act.
#pragma once

#include <vector>

#include "actors/act.h"
#include "checkpoint/shard.h"

namespace troupe::actors {

struct WriterSpec {
  Storage* storage = nullptr;
  std::string dir;                     ///< of the job's checkpoints (checkpoint/catalog.h)
  checkpoint::Stamp stamp;             ///< job and generation; each act has its own step
  std::int32_t rank = 0;
  std::vector<checkpoint::ShardEntry> entries;   ///< as lay_out placed them: port by port
  std::vector<PortMemory> in;          ///< the snapshots' arenas: ports follow each other in the file
  std::vector<std::int64_t> bytes;     ///< of each port's slot, in the file as in memory
  int attempts = 2;
  std::function<std::int64_t(std::int64_t step)> stall_ns;   ///< how long updates waited for the snapshots of a step
};

class WriterBody final : public Body {
 public:
  WriterBody(WriterSpec spec, ReportSink report) : spec_(std::move(spec)), report_(std::move(report)) {}
  /// Reports one Report::Kind::shard: `bytes` is the encoded checkpoint::ShardRecord, or `name` says what went wrong; `values`
  /// are the stall in seconds.
  Status run(const ActContext& context, Parallel& parallel) override;

 private:
  /// `again`: what an attempt before this one left is in the way. (Else it would be somebody else's, and stay.)
  Expected<checkpoint::ShardRecord> write(const ActContext& context, Parallel& parallel, bool again) const;
  /// Writes and sums up the data section. `file` ends up in the record's extents.
  Status write_data(const ActContext& context, File& file, std::int64_t data_offset, std::vector<std::vector<checkpoint::Checksum>>& sums,
                    Parallel& parallel) const;

  WriterSpec spec_;
  ReportSink report_;
};

}  // namespace troupe::actors
