// CheckpointCommitter: commits checkpoints and removes old ones, one after the other on a stream of its own, so that no
// step of training waits for a disk to sync a name.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "checkpoint/catalog.h"
#include "devices/device.h"

namespace troupe::checkpoint {

/// How the checkpoint of a step has ended.
struct Outcome {
  std::int64_t step = 0;
  /// ok: it is committed; `superseded`: another generation has the folder, whatever its files' own errors are
  Status status;
  std::int64_t bytes = 0, parameter_bytes = 0;  ///< of all its tensors; of its parameters
  std::vector<std::string> removed;             ///< folders that were pruned after its commit
  Status pruned;                                ///< the error of pruning, if any
  std::int64_t end_ns = 0;                      ///< when it was committed or given up; pruning comes later
};

class CheckpointCommitter {
 public:
  /// `head`: stamp (job and generation), seed and config of every manifest. What the references name outlives it.
  CheckpointCommitter(Storage& storage, Stream& stream, const Clock& clock, std::string dir, Manifest head,
                      Retention retention);
  ~CheckpointCommitter() { finish(); }

  /// Commits the checkpoint of a step. REQUIRES that its shards lie in its folder, synced; `state` is that version's.
  /// Thread-safe, does not wait. REQUIRES: no finish() is under way.
  void commit(std::int64_t step, std::vector<ShardRecord> records, TrainingState state);
  /// Removes the folder of a step, because a place could not write its shard, unless another process has committed a
  /// checkpoint there. Thread-safe, does not wait. REQUIRES: no finish() is under way.
  void abandon(std::int64_t step, Status why);
  /// The outcomes since the last call, in the order of commit() and abandon(). Thread-safe.
  std::vector<Outcome> outcomes();
  /// Ends all commits and removals that wait, on the caller's thread, and returns. REQUIRES: no commit() or abandon()
  /// is under way: the stream would run its work beside the caller's.
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
