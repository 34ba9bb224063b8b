// CheckpointTracker: the checkpoints of a running job, as the job's own process sees them: the claim on the folder, the
// versions that are wanted, the outcome of each. Workers write the shards (actors/writer.h), a CheckpointCommitter
// commits them beside the job's loop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/committer.h"
#include "runtime/plan/plan.h"
#include "runtime/session/job_checkpoints.h"

namespace troupe::runtime {

/// An event of a checkpoint, for people and metrics.
struct CheckpointEvent {
  enum class Kind : std::uint8_t {
    /// it is under way: bytes that are written, stall so far; about once a second
    saving,
    committed,   ///< it is on disk
    failed,      ///< it could not be written: `status` says where and why
    skipped,     ///< there was no room for it in the arenas: the disk does not keep up
    interrupted  ///< a place has died while it was written
  };
  Kind kind = Kind::committed;
  std::int64_t step = 0;
  std::int64_t parameter_bytes = 0, moment_bytes = 0;  ///< saving, committed
  double stall_s = 0;                                  ///< most that an update of any place waited for its copy
  double save_s = 0;                                   ///< from the decision until all of it was on disk, or until now
  /// failed: the error; committed: the error in removing older checkpoints, if any.
  Status status;
  int failures = 0;  ///< failed: in a row
};

struct CheckpointOptions {
  /// of checkpoints; empty: none are taken (the plan has no snapshots then). App::run refuses a folder that has
  /// checkpoints of a run which the job does not go on from: they would be pruned
  std::string dir;
  std::shared_ptr<FolderLock> lock;  ///< of `dir`; null: the job takes it, and refuses checkpoints of other runs there
  std::int64_t every = 0;            ///< steps between them; 0: of the last version only
  checkpoint::Retention retention;
  std::string config;  ///< the application's text, kept in every manifest
  /// Folder of the checkpoint to begin from; empty: initial values. SessionOptions::first_step is its step.
  std::string restore;
  /// job of the checkpoint that is restored, which App::run reads there; 0, as from one of step 0: the folder's job, or
  /// a new one
  std::uint64_t job = 0;
  std::function<void(const checkpoint::Stamp&)> on_begin;  ///< the job has claimed the folder
  int failures_max = 5;  ///< failures in a row after which the job stops (exit_checkpoint)
  std::function<void(const CheckpointEvent&)> on_event;
};

/// The state of the sums that a checkpoint has.
SumState sums_of(const checkpoint::Manifest& manifest);
/// That with which a run of the plan goes on from the checkpoint (SessionOptions::sums). A program that trains and that
/// the checkpoint does not name has updated nothing where the checkpoint has no moments of its parameters; else it is
/// the one program that trained before. Error: several did, and none of this name.
Expected<SumState> sums_of(const checkpoint::Manifest& manifest, const Plan& plan);

/// Not thread-safe: owned by the loop of the job's process.
class CheckpointTracker final : public JobCheckpoints {
 public:
  /// `first`, `last`: the versions that the job begins and ends with. Commits run on `stream`. REQUIRES: `plan`,
  /// `storage`, `stream` and `clock` outlive this object.
  CheckpointTracker(const Plan& plan, CheckpointOptions options, std::int64_t first, std::int64_t last,
                    Storage& storage, Stream& stream, const Clock& clock);

  /// Claims the folder for this run and removes the unfinished checkpoints of earlier runs. `fresh`: the number of a
  /// new job. Error: of the disk; another run holds the folder's lock. REQUIRES: called once, and without an error
  /// before the run begins.
  Status begin(std::uint64_t fresh);
  /// What the job has claimed: its job and generation. REQUIRES: begin() has returned no error.
  const checkpoint::Stamp& claim() const { return claim_; }
  void end_with(std::int64_t version) override { last_ = version; }
  bool wants(std::int64_t version) const override;
  /// False while so many commits wait for the disk that their manifests would pile up in this process.
  bool has_room() const override;
  void begun(std::int64_t version) override;
  void skipped(std::int64_t version) override;
  void saving(std::int64_t version, Rank place, const Report& report) override;
  void written(std::int64_t version, const std::vector<Report>& shards, const SumState& sums) override;
  /// Calls on_event for each commit that has ended since the last call. Error: `superseded`, from the first version on
  /// that is not committed because another job, or a later start of this one, has claimed the folder; saving has failed
  /// too often in a row; or see diverged(). No effect before begin().
  Status poll() override;
  Status finish() override;
  /// The folder is claimed.
  bool claimed() const { return committer_ != nullptr; }
  bool diverged() const override { return !ruined_.ok(); }
  /// Claims the folder again, unless another job has done so, which is an error (`superseded`). Where the disk does not
  /// let it, the job goes on all the same: its checkpoints fail until the folder can be claimed, as one begins.
  Expected<std::uint32_t> next_generation(std::uint32_t number) override;
  void all_left(const Plan& plan) override;
  /// Reads manifests: passes over those that are damaged or gone.
  std::optional<SavedVersion> newest() override;
  bool reject_newest(const Status& why) override;

 private:
  /// The newest of saved_ is none that the job can go on from.
  void forget_newest();
  /// Claims the folder for a generation with this number, or a later one.
  Status claim_again(std::uint32_t at_least);
  /// Ok also where the folder has no claim.
  Status check_not_claimed_by_others();
  /// Replaces the job's claim. After an error it may be there even so, without a sync: then it is the job's, too.
  Status write_claim(const checkpoint::Claim& next);
  /// The job's generation has this stamp.
  void own(const checkpoint::Stamp& stamp);

  const Plan* plan_;  // that the job runs
  CheckpointOptions options_;
  const std::int64_t first_;
  std::int64_t last_;
  Storage& storage_;
  Stream& stream_;
  const Clock& clock_;
  struct UnderWay {
    std::int64_t begin_ns = 0, told_ns = 0;
    double stall_s = 0;
    std::map<Rank, std::pair<double, double>> bytes;  // of parameters and of moments, so far
  };
  std::map<std::int64_t, UnderWay> under_way_;  // by version
  checkpoint::Stamp claim_;                     // of the generation
  checkpoint::Stamp claimed_;                   // what the folder's claim says
  Status unclaimed_;                            // why that is an older one
  std::vector<checkpoint::Outcome> refused_;    // of versions that are not saved since the folder is not claimed
  std::shared_ptr<FolderLock> lock_;
  std::unique_ptr<checkpoint::CheckpointCommitter> committer_;
  std::int64_t given_ = -1;                // the newest version given to the committer
  std::vector<SavedVersion> saved_;        // committed, by version; retention may have removed some
  std::map<std::int64_t, SumState> sums_;  // of versions given to the committer, without an outcome yet
  int failures_ = 0;
  int committing_ = 0;  ///< given to the committer, without an outcome yet
  Status ruined_;       ///< of the first version with parameters that are not finite
  Status superseded_;   ///< no later version can be committed
  Status last_failed_;  ///< why the last version has no checkpoint
};

}  // namespace troupe::runtime
