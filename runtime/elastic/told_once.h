// ToldOnce: what a job tells its application of its steps, once each, whatever is repeated after an incident.
//
//   CO-3  (held back) what concerns version v (the step that makes it, its evaluation, its checkpoint, which is
//         committed then) is told when every place has voted for step v, which proves v whole at every place: where
//         it lies in slots that survive, no step that was told is repeated;
//   CO-4  (compared) a step that is repeated all the same, because the job goes on from a copy or a checkpoint, is not
//         told again: its loss and norm must be, bit for bit, those that were told.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/session/session.h"

namespace troupe::runtime {

/// Stands between the sessions of a job, one for each generation, and the application's callbacks. Not thread-safe.
class ToldOnce {
 public:
  /// `holds`: false: everything is told at once, and nothing may be repeated.
  ToldOnce(SessionOptions application, bool holds);
  ~ToldOnce();
  ToldOnce(const ToldOnce&) = delete;

  /// What it hears from here on happens at this time, in this generation (SessionOptions::on_event).
  void at(std::int64_t now_ns, std::uint32_t generation) { now_ = {now_ns, generation}; }
  /// The application's options with callbacks that come here; they refer to this object.
  SessionOptions options();
  /// The job's checkpoints with what the session tells them: shards that are written are told behind the line of the
  /// step that has made their version, so that a checkpoint to resume from never lies before a line that is missing.
  /// Refers to this object. REQUIRES: called once; `checkpoints` outlives this object.
  SnapshotObserver* observer(SnapshotObserver& checkpoints);
  /// The job goes on from this version, which is whole at every place: what concerns later ones is forgotten and comes
  /// again.
  void go_on_from(std::int64_t version);
  /// A place is lost: tells what concerns versions up to the newest of which every place has written its part of a
  /// checkpoint: that one lies whole on the disk. REQUIRES: the checkpoints are still of the generation that ends.
  void tell_written() { tell_to(std::exchange(written_, -1)); }
  /// Tells what is held back: the job is over.
  void tell_all() { tell_to(newest_); }
  /// Ok, or that a repeated step came out otherwise than it was told (CO-4 compared).
  const Status& contradiction() const { return contradiction_; }
  std::int64_t void_steps() const { return void_steps_; }

 private:
  void step(const StepResult& result);
  void closed(const std::string& program, std::int64_t version, const std::vector<Report>& reports);
  std::vector<std::string> readers(std::int64_t version);
  /// Keeps an event of a version until it may be told.
  void hold(std::int64_t version, std::function<void()> event);
  void tell_to(std::int64_t version);
  void tell_step(const StepResult& result);

  class Held;

  const SessionOptions application_;
  const bool holds_;
  const std::int64_t first_;
  std::int64_t newest_ = 0;                                          // of which there was an event
  std::deque<std::pair<std::int64_t, std::function<void()>>> held_;  // by version
  /// By step from first_ on: loss and norm of each program that trains.
  std::vector<std::vector<std::pair<double, double>>> told_;
  std::set<std::pair<std::string, std::int64_t>> started_, closed_;  // programs and versions that were told
  std::map<std::int64_t, std::vector<std::string>> asked_;           // programs that read a version, where any does
  std::int64_t asked_to_;                                            // the application was asked of versions before it
  std::pair<std::int64_t, std::uint32_t> now_{-1, 0};
  std::unique_ptr<SnapshotObserver> observer_;
  std::int64_t written_ = -1;  // the newest version of which a checkpoint is held back; -1: none
  std::int64_t void_steps_ = 0;
  Status contradiction_;
};

}  // namespace troupe::runtime
