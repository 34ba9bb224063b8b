// Where a resumed run begins: which checkpoint, and whether this configuration may go on from it.
#pragma once

#include <string>
#include <vector>

#include "apps/options/config.h"
#include "checkpoint/catalog.h"

namespace troupe::lm {

/// A checkpoint that could be begun from.
struct ResumePoint {
  std::string folder;                  ///< path
  checkpoint::Manifest manifest;
};

/// The checkpoints that a `--resume` may mean, newest first. One that cannot be read is passed over, and noted, unless the
/// user named it.
class Resume {
 public:
  /// `what`: a checkpoint's folder, or a folder of checkpoints, of which the newest is meant. Error: not_found.
  static Expected<Resume> find(Storage& storage, const std::string& what);
  /// The next older one that has a good manifest; `damaged` when there is none (left), with what was wrong with the newest.
  Expected<ResumePoint> next();
  /// Says that the one before was no good, after its manifest had been read.
  void reject(const Status& why);
  /// The output folder of the run that it is of: what a folder `checkpoints` is in; of another folder runs/ and its name.
  std::string run_folder() const;
  /// What was passed over, for people.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  explicit Resume(Storage& storage) : storage_(&storage) {}
  Storage* storage_;
  std::string dir_, current_;
  bool named_ = false;                 ///< one checkpoint: no other will do
  std::vector<std::string> folders_;   ///< oldest first, still to be tried
  std::vector<std::string> notes_;
  Status first_;                       ///< what was wrong with the newest
};

/// True for weights from elsewhere (troupe ckpt import): step 0, no moments. No run has begun with them.
bool is_weights_only(const checkpoint::Manifest& manifest);

/// Ok where `now` may go on from a checkpoint of a run of `saved`. Error: it is another model, or another order of the data,
/// naming the key and both values. `notes` gets what changes numbers and is allowed: the schedule, say.
Status check_resumable(const LmConfig& saved, const LmConfig& now, std::vector<std::string>& notes);
/// Ok where a run of `now` may begin with weights of the model of `saved`: only the model is fixed, but for its dropout and
/// for a shorter `model.seq`.
Status check_model(const LmConfig& saved, const LmConfig& now);

}  // namespace troupe::lm
