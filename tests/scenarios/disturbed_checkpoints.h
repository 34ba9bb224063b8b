// DisturbedCheckpoints: the production CheckpointTracker of a simulated job, with what happens to its disk. Commits run
// some events after they were asked for, as on a stream of their own, and the machine may stop at any event or
// operation of the disk.
#pragma once

#include <optional>
#include <vector>

#include "devices/sim/sim_loop.h"
#include "devices/sim/sim_storage.h"
#include "runtime/session/checkpoint_tracker.h"
#include "tests/scenarios/faults.h"

namespace troupe::scenarios {

class DisturbedCheckpoints final : public runtime::JobCheckpoints {
 public:
  /// `loop`: of the stream on which `tracker` commits. `late`: events until a commit begins. The references outlive
  /// this object.
  DisturbedCheckpoints(runtime::CheckpointTracker& tracker, SimLoop& loop, SimStorage& disk, std::vector<Fault> faults,
                       std::int64_t late)
      : tracker_(tracker), loop_(loop), disk_(disk), faults_(std::move(faults)), late_(late) {}

  /// The machine has stopped: nothing that the job does counts any more.
  bool stopped() const { return stop_at_ && disk_.operations() >= *stop_at_; }

  /// The kinds of faults that have come to the disk so far.
  std::vector<FaultKind> hits() const;

  bool wants(std::int64_t version) const override { return tracker_.wants(version); }
  bool has_room() const override { return tracker_.has_room(); }
  void begun(std::int64_t version) override { tracker_.begun(version); }
  void skipped(std::int64_t version) override { tracker_.skipped(version); }
  void saving(std::int64_t version, Rank place, const runtime::Report& report) override {
    tracker_.saving(version, place, report);
  }
  void written(std::int64_t version, const std::vector<runtime::Report>& shards,
               const runtime::SumState& sums) override {
    tracker_.written(version, shards, sums);
    if (!commit_at_) commit_at_ = events_ + late_;
  }
  void end_with(std::int64_t version) override { tracker_.end_with(version); }
  /// Called once an event, by Coordinator::turn.
  Status poll() override;
  Status finish() override { return stopped() ? machine_stops() : tracker_.finish(); }
  bool diverged() const override { return tracker_.diverged(); }
  Expected<std::uint32_t> next_generation(std::uint32_t number) override {
    if (stopped()) return machine_stops();
    return tracker_.next_generation(number);
  }
  void all_left(const runtime::Plan& plan) override {
    if (!stopped()) tracker_.all_left(plan);
  }
  std::optional<runtime::SavedVersion> newest() override { return tracker_.newest(); }
  bool reject_newest(const Status& why) override { return tracker_.reject_newest(why); }

 private:
  static Status machine_stops() { return {Code::unavailable, "the simulated machine stops"}; }
  void inject(const Fault& fault);

  runtime::CheckpointTracker& tracker_;
  SimLoop& loop_;
  SimStorage& disk_;
  const std::vector<Fault> faults_;  // by event
  const std::int64_t late_;
  std::size_t fault_ = 0;                            // the next of them
  std::int64_t events_ = 0;                          // so far
  std::optional<std::int64_t> commit_at_, room_at_;  // events
  std::optional<std::int64_t> stop_at_, error_at_;   // operations of the disk
  FaultKind stops_ = FaultKind::disk_stop;           // what stops it
  std::vector<FaultKind> hits_;
};

}  // namespace troupe::scenarios
