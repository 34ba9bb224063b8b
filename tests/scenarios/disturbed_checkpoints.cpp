#include "tests/scenarios/disturbed_checkpoints.h"

#include <limits>

#include "devices/base/check.h"

namespace troupe::scenarios {

Status DisturbedCheckpoints::poll() {
  ++events_;
  if (error_at_ && disk_.operations() > *error_at_) {
    hits_.push_back(FaultKind::disk_error);
    error_at_.reset();
  }
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
    case FaultKind::machine:
      stop_at_ = disk_.operations();
      stops_ = FaultKind::machine;
      return disk_.stop_at(*stop_at_);
    case FaultKind::disk_stop:
      if (stop_at_) return;  // it stops before
      stop_at_ = operation;
      return disk_.stop_at(operation);
    case FaultKind::disk_full:
      room_at_ = events_ + fault.operations;
      hits_.push_back(fault.kind);
      return disk_.set_capacity(0);
    case FaultKind::disk_error: error_at_ = operation; return disk_.fail(operation);
    case FaultKind::kill:
    case FaultKind::crash:
    case FaultKind::hang:
    case FaultKind::cut_off:
    case FaultKind::cut:
    case FaultKind::cut_one_way:
    case FaultKind::fails:
    case FaultKind::blip:
    case FaultKind::pause:
    case FaultKind::stale_vote:
    case FaultKind::stale_order:
    case FaultKind::change:
    case FaultKind::interrupt: break;
  }
  ASSERT(false, name_of(fault.kind));
}

std::vector<FaultKind> DisturbedCheckpoints::hits() const {
  std::vector<FaultKind> hits = hits_;
  if (error_at_ && disk_.operations() > *error_at_) hits.push_back(FaultKind::disk_error);
  if (stopped()) hits.push_back(stops_);
  return hits;
}

}  // namespace troupe::scenarios
