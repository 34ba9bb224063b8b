// Where a resumed run begins: which checkpoint, whether this configuration may go on from it, and what it inherits from
// the checkpoint's run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/job/job.h"
#include "apps/options/config.h"
#include "checkpoint/catalog.h"

namespace troupe::lm {

/// A checkpoint from which a run may begin.
struct ResumePoint {
  std::string folder;  ///< path
  checkpoint::Manifest manifest;
};

/// The checkpoints that a `--resume` may mean, newest first. A checkpoint that cannot be read is passed over, and
/// noted, unless the user named it.
class Resume {
 public:
  /// What a checkpoint is read for: a training run locks the folder of checkpoints before it looks at them, so that no
  /// other run removes or writes any; a reader takes what is there, from under a run that saves, too.
  enum class For : std::uint8_t { training, reading };
  /// `what`: a checkpoint's folder, or a folder of checkpoints, of which the newest is meant. Errors: not_found;
  /// `unavailable`, another run has the lock.
  static Expected<Resume> find(Storage& storage, const std::string& what, For use = For::reading);
  /// Leaves only the checkpoints of this step to be tried. Error: not_found, there is none.
  Status only(std::int64_t step);
  /// Returns the next older checkpoint that has a good manifest. Error: `damaged` if none is left, with the error of
  /// the newest.
  Expected<ResumePoint> next();
  /// Notes that the checkpoint that next() returned last is damaged behind its manifest.
  void reject(const Status& why);
  /// Whether the checkpoint that next() tried last is not there any more, and the user has not named it: a run that
  /// saves there has removed it, and has a newer one.
  bool is_outrun() const;
  /// The folder of checkpoints, and its lock; null where they are only read.
  const std::string& dir() const { return dir_; }
  const std::shared_ptr<FolderLock>& lock() const { return lock_; }
  /// The output folder of the checkpoints' run: the parent of a folder `checkpoints`; of another folder runs/ and its
  /// name.
  std::string run_folder() const;
  /// A line for each checkpoint that was passed over, for people.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  explicit Resume(Storage& storage) : storage_(&storage) {}
  Storage* storage_;
  std::string dir_, current_;
  std::shared_ptr<FolderLock> lock_;
  bool named_ = false;                ///< the user named one checkpoint: no other is tried
  std::vector<std::string> folders_;  ///< oldest first, still to be tried
  std::vector<std::string> notes_;
  Status first_;  ///< the error of the newest
};

/// True for weights from elsewhere (troupe ckpt import): step 0, no moments. No run has begun with them.
bool is_weights_only(const checkpoint::Manifest& manifest);

/// Ok where `now` may go on from a checkpoint of a run of `saved`. Error: it is another model, or another order of the
/// data, naming the key and both values. `notes` gets a line for each key that changes numbers and may change: the
/// schedule, say.
Status check_resumable(const LmConfig& saved, const LmConfig& now, std::vector<std::string>& notes);
/// Ok where a run of `now` may begin with weights of the model of `saved`: all keys may differ except those of the
/// model, of which dropout and init_std may differ and `model.seq` may be shorter. Error: names the key and both
/// values.
Status check_model(const LmConfig& saved, const LmConfig& now);

/// The configuration of the checkpoint's run; overrides and warnings as of parse_config. Error: there is none, or it is
/// none of this version; names the checkpoint.
Expected<LmConfig> saved_config(const ResumePoint& point, const std::vector<std::string>& overrides = {},
                                std::vector<std::string>* warnings = nullptr);

/// Whether a run of `config` that goes on from a checkpoint saves as often as the checkpoint's run: yes, unless the
/// configuration or --set says how often, or the run is paced.
bool goes_on_saving(const JobArguments& arguments, const LmConfig& config);

/// The line that tells the user where a resumed run begins, and how often it saves: every `every` steps; 0: never.
std::string resumed_text(const ResumePoint& point, std::int64_t every);

}  // namespace troupe::lm
