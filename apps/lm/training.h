// One run of `troupe train`: its text, its plan, its session.
#pragma once

#include <memory>
#include <optional>

#include "apps/lm/data.h"
#include "apps/lm/model.h"
#include "apps/lm/results.h"
#include "apps/lm/resume.h"
#include "devices/files/file_storage.h"

namespace troupe::lm {

class Training {
 public:
  /// `resume`: where to begin; none: with initial values. `point` is its first answer.
  Training(const runtime::App& app, const JobArguments& arguments, Prepared prepared, std::optional<Resume> resume, std::optional<ResumePoint> point);
  /// Trains and writes what there is to say; answers the exit code.
  int run();

 private:
  Status open(int& code);
  /// From here on the run begins at `point_`. Error: its configuration does not fit.
  Status begin_at_point();
  /// A folder that has checkpoints of an earlier run is not written into by another.
  Status check_folder() const;
  runtime::JobOptions options();
  /// Of two runs at the same time one writes into the output folder.
  Status lock_folder();
  /// Whether the run goes on that has written the output folder.
  bool continues_folder() const;
  bool evaluates_at(std::int64_t version) const;

  const runtime::App& app_;
  const JobArguments& a_;
  const Prepared p_;
  const std::int64_t steps_;
  mutable FileStorage storage_;        ///< has no state
  std::unique_ptr<FolderLock> lock_;   ///< of the output folder
  std::optional<Resume> resume_;
  std::optional<ResumePoint> point_;
  std::int64_t first_step_ = 0;
  std::optional<Corpus> corpus_;       ///< the text, as it was when its fingerprint was taken
  std::string fingerprint_;            ///< of the text
  Status changed_data_;                ///< the text is another one since then
  Predicted predicted_;
  Results results_;
  Sampler sampler_;
  runtime::Plan plan_;
};

}  // namespace troupe::lm
