#include "apps/job/output_folder.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "apps/job/run_record.h"
#include "apps/report/files.h"
#include "checkpoint/catalog.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::lm {

using namespace runtime;

Status OutputFolder::open() {
  TROUPE_TRY(report::prepare_output_dir(storage_, dir_));
  if ((lock_ = lock_of(dir_))) return {};
  auto lock = storage_.lock_dir(dir_);
  if (lock.status().code() == Code::unavailable)
    return Status(Code::unavailable,
                  "output folder '" + dir_ + "' is written by another run: choose another --out, or wait for its end");
  TROUPE_ASSIGN(lock_, std::move(lock));
  return {};
}

std::shared_ptr<FolderLock> OutputFolder::lock_of(const std::string& dir) const {
  std::error_code error;
  if (resume_ && std::filesystem::equivalent(dir, resume_->dir(), error)) return resume_->lock();
  return std::filesystem::equivalent(dir, dir_, error) ? lock_ : nullptr;
}

Status check_checkpoint_dir(Storage& storage, const JobArguments& a, const Resume* resume, const ResumePoint* point,
                            int& code) {
  const std::string dir = checkpoint_dir(a);
  const checkpoint::Catalog catalog(storage, dir);
  code = a.checkpoint_dir.empty() ? exit_output : exit_checkpoint;
  std::error_code error;
  if (!a.checkpoint_dir.empty() && std::filesystem::exists(dir, error) && !std::filesystem::is_directory(dir, error))
    return invalid("--checkpoint-dir '" + dir + "' is no folder: name a folder, which need not exist");
  TROUPE_ASSIGN(const auto foreign, catalog.foreign(point ? &point->manifest : nullptr));
  code = exit_output;
  if (!foreign) return {};
  const std::string elsewhere = "choose another --out or --checkpoint-dir, or remove them";
  if (!resume || !std::filesystem::equivalent(dir, resume->dir(), error)) {  // else the lock is this run's own
    const auto lock = catalog.lock();
    code = exit_checkpoint;
    if (!lock.ok()) return lock.status();
    code = exit_output;
  }
  if (!point || point->manifest.stamp.step == 0)
    return invalid("'" + catalog.dir() + "' has checkpoints of an earlier run: go on with --resume, " + elsewhere);
  return invalid("'" + catalog.path(*foreign) + "' is of another run than '" + point->folder +
                 "', from which this one goes on, and would be pruned: " + elsewhere);
}

bool continues_results(const std::string& dir, const ResumePoint& point) {
  if (point.manifest.stamp.step == 0) return false;
  return read_run_record(dir).job == point.manifest.stamp.job;
}

Expected<std::string> set_aside_results(const std::string& dir, bool continues) {
  // A run that goes on may write neither trace nor sample: earlier files must not pass for its own.
  std::vector<std::string> stale = {"trace.json", "sample.txt"};
  if (!continues) stale.insert(stale.end(), {"metrics.jsonl", "incidents.jsonl", "run.json", "loss.svg", "plan.txt"});
  TROUPE_ASSIGN(const auto aside, report::set_aside(dir, stale));
  const std::string what = continues ? "the trace or sample that the run had" : "what an earlier run has left";
  return aside.empty() ? "" : what + " in '" + dir + "' is now in '" + aside + "'";
}

}  // namespace troupe::lm
