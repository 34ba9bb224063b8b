// One run of `troupe train`: its text, its plan, its session.
#pragma once

#include <memory>
#include <optional>

#include "apps/job/interruption.h"
#include "apps/job/results.h"
#include "apps/job/resume.h"
#include "apps/lm/data.h"
#include "apps/lm/model.h"
#include "apps/lm/text_file.h"
#include "devices/files/file_storage.h"
#include "devices/process/end_signals.h"

namespace troupe::lm {

class Training {
 public:
  /// `resume`: the checkpoints to begin from, of which `point` is the first; none: begins with initial values.
  Training(const runtime::App& app, const JobArguments& arguments, Prepared prepared, std::optional<Resume> resume,
           std::optional<ResumePoint> point);
  /// Trains and writes the results; prints an error to stderr. Returns the exit code.
  int run();

 private:
  Status open(int& code);
  /// Opens the text; returns the path of its plain file. A signal that comes meanwhile leaves no file that is partly
  /// unpacked: it is an error. On an error, `code` is the exit code for it, if it is not exit_output.
  Expected<std::string> open_text(int& code);
  /// The same; gives up where `give_up` says so, and leaves that error's exit code to the caller.
  Expected<std::string> open_corpus(const GiveUp& give_up, int& code);
  /// Makes the run begin at `point_`. Error: its configuration does not fit, or the results cannot be written; `code`
  /// says which.
  Status begin_at_point(int& code);
  /// Error, with its exit code in `code`: the folder of checkpoints is no folder, or has checkpoints of another run.
  Status check_folder(int& code) const;
  /// What a user whose training has diverged can do.
  std::string advice() const;
  runtime::JobOptions options();
  /// Locks the output folder. Error: another run has the lock.
  Status lock_folder();
  /// The lock of `dir` that this run has already: as the output folder, or as the folder of the checkpoints it goes on
  /// from.
  std::shared_ptr<FolderLock> lock_of(const std::string& dir) const;
  /// Whether this run continues the run that has written the output folder.
  bool continues_folder() const;
  bool evaluates_at(std::int64_t version) const;

  const runtime::App& app_;
  const JobArguments& a_;
  const Prepared p_;
  const std::int64_t steps_;
  mutable FileStorage storage_;       ///< has no state
  std::shared_ptr<FolderLock> lock_;  ///< of the output folder
  std::optional<Resume> resume_;
  std::optional<ResumePoint> point_;
  std::int64_t first_step_ = 0;
  std::optional<Corpus> corpus_;  ///< the text, as it was when its fingerprint was taken
  std::string fingerprint_;       ///< of the text
  Status changed_data_;           ///< the text is another one since then
  Predicted predicted_;
  std::string ahead_;  ///< of schedule.ahead = auto, for people
  Results results_;
  Sampler sampler_;
  runtime::Plan plan_;
  Interruption interruption_;  ///< while the text is opened
  /// From the first file of results to the last: what ends the run is in run.json before it ends the command. A job
  /// takes the signals meanwhile.
  std::optional<EndSignals> end_signals_;
};

}  // namespace troupe::lm
