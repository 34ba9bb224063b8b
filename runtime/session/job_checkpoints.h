// JobCheckpoints: the checkpoints of a job, as the coordinator sees them.
#pragma once

#include "runtime/session/session.h"

namespace troupe::runtime {

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
};

}  // namespace troupe::runtime
