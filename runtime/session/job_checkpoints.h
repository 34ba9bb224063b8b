// JobCheckpoints: the checkpoints of a job, as the coordinator sees them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/session/session.h"

namespace troupe::runtime {

/// A checkpoint that a job can go on from.
struct SavedVersion {
  std::string folder;
  std::int64_t version = 0;
  SumState sums;
};

/// What the session asks and tells, and what becomes of the commits.
class JobCheckpoints : public SnapshotObserver {
 public:
  /// The run ends with this version instead of its last one.
  virtual void end_with(std::int64_t version) = 0;
  /// Takes the commits that have ended since the last call. Error: the job cannot go on.
  virtual Status poll() = 0;
  /// Waits for the commits under way, then as poll. Error: as poll; or the last version's checkpoint could not be
  /// saved.
  virtual Status finish() = 0;
  /// A version had parameters or moments that are not finite, which is why it was not committed.
  virtual bool diverged() const = 0;
  /// The job goes on in the next generation, since a place has died: ends the commits under way, gives the versions up
  /// of which shards are missing, and returns the generation's number, greater than `number`. Error: the job cannot go
  /// on.
  virtual Expected<std::uint32_t> next_generation(std::uint32_t number) { return number + 1; }
  /// All places have left the generation before, and the job goes on with `plan`, which outlives it: removes what they
  /// have left unfinished.
  virtual void all_left(const Plan& plan) { (void)plan; }
  /// The newest that the job has saved, and that is there; nullopt: none.
  virtual std::optional<SavedVersion> newest() { return {}; }
  /// Takes newest() out of what the job goes on from, since a place cannot restore it. False: there is none.
  virtual bool reject_newest(const Status& why) { return (void)why, false; }
};

}  // namespace troupe::runtime
