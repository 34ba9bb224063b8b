#include "checkpoint/committer.h"

namespace troupe::checkpoint {

CheckpointCommitter::CheckpointCommitter(Storage& storage, Stream& stream, const Clock& clock, std::string dir,
                                         Manifest head, Retention retention)
    : storage_(storage), stream_(stream), clock_(clock), catalog_(storage, std::move(dir)), head_(std::move(head)),
      retention_(retention) {}

void CheckpointCommitter::commit(std::int64_t step, std::vector<ShardRecord> records, TrainingState state) {
  add({step, std::move(records), std::move(state), {}});
}

void CheckpointCommitter::abandon(std::int64_t step, Status why) { add({step, {}, {}, std::move(why)}); }

void CheckpointCommitter::add(Work work) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  Task task;
  task.name = "commit a checkpoint";
  task.work = [this](Parallel&) { work_off(); };
  stream_.submit(std::move(task));
}

void CheckpointCommitter::work_off() {
  for (;;) {
    Work work;
    {
      std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Outcome outcome = run(std::move(work));
    std::lock_guard lock(mutex_);
    outcomes_.push_back(std::move(outcome));
  }
}

Outcome CheckpointCommitter::run(Work work) {
  Outcome out;
  out.step = work.step;
  const std::string folder = folder_name(work.step, head_.stamp.generation);
  const bool abandoned = !work.failed.ok();
  out.status = std::move(work.failed);
  if (out.status.ok()) {
    Manifest head = head_;
    head.stamp.step = work.step;
    head.updates = work.state.updates;
    head.exponents = std::move(work.state.exponents);
    head.void_steps = work.state.void_steps;
    head.programs = std::move(work.state.programs);
    auto manifest = merge(std::move(head), work.records);
    out.status = manifest.ok() ? catalog_.commit(*manifest) : manifest.status();
    if (manifest.ok()) {
      out.bytes = manifest->bytes();
      for (const auto& t : manifest->tensors)
        if (t.kind == TensorKind::parameter) out.parameter_bytes += t.bytes();
    }
  }
  out.end_ns = clock_.now_ns();
  if (!out.status.ok()) {
    // A generation that takes the folder removes what is not committed there: then its claim is the cause.
    if (Status claimed = check_claim(storage_, catalog_.dir(), head_.stamp); claimed.code() == Code::superseded)
      out.status = std::move(claimed);
    // Another process of the same generation (README.md) has committed this step: its shards were in the way of ours.
    if (abandoned && catalog_.manifest(folder).ok()) return out;
    // The folder must not look like a checkpoint, and a full disk needs the room. If removing fails, the next start
    // cleans up.
    (void)catalog_.remove(folder).ok();
    return out;
  }
  auto removed = catalog_.prune(retention_);
  if (removed.ok()) out.removed = *std::move(removed);
  else out.pruned = removed.status();
  return out;
}

std::vector<Outcome> CheckpointCommitter::outcomes() {
  std::lock_guard lock(mutex_);
  return std::exchange(outcomes_, {});
}

void CheckpointCommitter::finish() {
  // the running commit ends; tasks that wait are forgotten, their work is still in waiting_
  stream_.quiesce();
  work_off();
}

}  // namespace troupe::checkpoint
