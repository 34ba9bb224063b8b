// What a run of `troupe train` does with its output folder: a lock keeps a second run out; checkpoints of another run
// are refused; results of another run are set aside, those of the run that it goes on from are continued.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "apps/job/job.h"
#include "apps/job/resume.h"
#include "devices/base/status.h"
#include "devices/base/storage.h"

namespace troupe::lm {

/// The output folder of a run, and the lock that keeps a second run out of it while this object lives.
class OutputFolder {
 public:
  /// `resume`: the checkpoints from which the run goes on; null: it begins with initial values. REQUIRES: `storage` and
  /// `resume` outlive this object.
  OutputFolder(Storage& storage, std::string dir, const Resume* resume)
      : storage_(storage), dir_(std::move(dir)), resume_(resume) {}
  /// Creates the folder where it is missing, tests that it can be written, and locks it. Error: of
  /// report::prepare_output_dir; another run has the lock.
  Status open();
  /// The lock of `dir` that this run has already: as the output folder, or as the folder of the checkpoints from which
  /// it goes on. Null: it has none.
  std::shared_ptr<FolderLock> lock_of(const std::string& dir) const;

 private:
  Storage& storage_;
  const std::string dir_;
  const Resume* resume_;
  std::shared_ptr<FolderLock> lock_;
};

/// Ok where a run that begins at `point` of `resume` (null: with initial values) may save in checkpoint_dir(arguments).
/// Error, with its exit code in `code`: that is no folder, or has checkpoints of another run, or one writes there.
Status check_checkpoint_dir(Storage& storage, const JobArguments& arguments, const Resume* resume,
                            const ResumePoint* point, int& code);

/// Whether a run that begins at `point` continues the run whose results are in the output folder `dir`.
bool continues_results(const std::string& dir, const ResumePoint& point);

/// Moves the results that an earlier run has left in the output folder `dir` to a new folder earlier-N there; where
/// this run continues that run (`continues`), only trace.json and sample.txt, which it may not write again. Returns the
/// line that tells the user; empty: there were none. Error: of the disk.
Expected<std::string> set_aside_results(const std::string& dir, bool continues);

}  // namespace troupe::lm
