#include "tests/scenarios/disturbed_checkpoints.h"

#include <limits>

namespace troupe::scenarios {

Status DisturbedCheckpoints::poll() {
  ++events_;
  while (fault_ < faults_.size() && faults_[fault_].at_event <= events_) inject(faults_[fault_++]);
  if (room_at_ && events_ >= *room_at_) {
    disk_.set_capacity(std::numeric_limits<std::int64_t>::max());
    room_at_.reset();
  }
  if (commit_at_ && events_ >= *commit_at_) {
    while (loop_.run_one()) {}
    commit_at_.reset();
  }
  return stopped() ? machine_stops() : tracker_.poll();
}

void DisturbedCheckpoints::inject(const Fault& fault) {
  const std::int64_t operation = disk_.operations() + fault.operations;
  switch (fault.kind) {
    case FaultKind::machine: stop_at_ = disk_.operations(); return disk_.stop_at(*stop_at_);
    case FaultKind::disk_stop:
      if (stop_at_) return;  // it stops before
      stop_at_ = operation;
      return disk_.stop_at(operation);
    case FaultKind::disk_full: room_at_ = events_ + fault.operations; return disk_.set_capacity(0);
    case FaultKind::disk_error: return disk_.fail(operation);
    default: return;
  }
}

}  // namespace troupe::scenarios
