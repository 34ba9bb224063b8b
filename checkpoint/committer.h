// CheckpointCommitter: commits checkpoints and removes old ones, one after the other on a stream of its own, so that nobody who trains
// waits for a disk to sync a name.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "checkpoint/catalog.h"
#include "devices/device.h"

namespace troupe::checkpoint {

/// What became of the checkpoint of a step.
struct Outcome {
  std::int64_t step = 0;
  Status status;                       ///< ok: it is committed
  std::int64_t bytes = 0, parameter_bytes = 0;   ///< of its tensors, of those that are parameters
  std::vector<std::string> removed;    ///< folders that it made superfluous
  Status pruned;                       ///< why some of those are still there
  std::int64_t end_ns = 0;             ///< when it was committed, or given up; what was removed was removed after that
};

class CheckpointCommitter {
 public:
  /// `head`: stamp (job and generation), seed and config of every manifest. All references stay.
  CheckpointCommitter(Storage& storage, Stream& stream, const Clock& clock, std::string dir, Manifest head, Retention retention);
  ~CheckpointCommitter() { finish(); }

  /// The shards of a step lie in its folder, synced; `state` is that version's. Thread-safe, does not wait.
  void commit(std::int64_t step, std::vector<ShardRecord> records, TrainingState state);
  /// Some place could not write: what lies in the folder goes.
  void abandon(std::int64_t step, Status why);
  /// What has come to an end since the last call, in order. Thread-safe.
  std::vector<Outcome> outcomes();
  /// Returns when all of it has come to an end.
  void finish();

 private:
  struct Work {
    std::int64_t step = 0;
    std::vector<ShardRecord> records;
    TrainingState state;
    Status failed;
  };
  void add(Work work);
  void work_off();
  Outcome run(Work work);

  Storage& storage_;
  Stream& stream_;
  const Clock& clock_;
  Catalog catalog_;
  const Manifest head_;
  const Retention retention_;
  std::mutex mutex_;
  std::deque<Work> waiting_;
  std::vector<Outcome> outcomes_;
};

}  // namespace troupe::checkpoint
