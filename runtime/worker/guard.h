// Guard: what a place does for guards (CO-8 guards, runtime/place/guard_rule.h): copies its part of a version that is
// due, sends it to its guard on the next machine, and takes what it guards for others. It has no actor and no program
// in the plan, which knows nothing of machines; the vote of a step waits for it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/place/guard_layout.h"
#include "runtime/place/guard_rule.h"
#include "runtime/session/control.h"
#include "runtime/worker/transfer_env.h"

namespace troupe::runtime {

/// Channels of guards begin here, above those of healing.
inline constexpr std::uint32_t first_guard_channel = 3u << 30;

/// Bytes of a slot of parameters that a place copies into a slot of its own part.
struct GuardRun {
  std::int32_t channel = 0;  ///< index into LocalPlan::channels
  std::int64_t from = 0, to = 0, bytes = 0;
};

struct GuardSpec {
  GuardRule rule;
  std::vector<GuardRun> runs;
  std::byte* pool = nullptr;                  ///< where the parameters lie
  std::byte* memory = nullptr;                ///< GuardLayout::bytes
  Stream* copies = nullptr;                   ///< on which the place copies
  std::function<void(const Status&)> failed;  ///< a transfer has failed: called once, from any thread
};

/// Thread-safe. Callbacks keep the object alive; `spec`, `env`, the plan and the layout's memory outlive them, as
/// Worker::stop sees to.
class Guard : public std::enable_shared_from_this<Guard> {
 public:
  Guard(const Plan& plan, const LocalPlan& local, GuardSpec spec, const TransferEnv& env);
  /// The generation begins with this version. REQUIRES: before the first commit.
  void begin(std::int64_t version);
  /// The commit of a step has come: guards the version of this number, if it is due. REQUIRES: before the update
  /// begins.
  void committed(std::int64_t step);
  /// Sends the vote of a step as soon as the guards allow it: at once, or when what it waits for is whole.
  void vote(Closed vote, std::function<void(FromWorker)> send);
  /// What a vote waits for, a line; empty: none waits.
  std::string waits_for() const;
  /// Nothing begins and no vote is sent from here on.
  void stop();

 private:
  struct Held {
    Closed vote;
    std::function<void(FromWorker)> send;
  };
  std::byte* slot_of(Rank rank, std::int64_t version) const;
  void copy(std::int64_t version, Parallel& parallel);
  void send_more(std::int64_t version, std::int64_t next);
  void take_more(std::int64_t version, Rank from, std::int64_t next);
  /// One of the parts of a version that this place copies, sends or takes is whole.
  void ended(std::int64_t version, const Status& status);
  void fail(const Status& status);
  bool allowed(std::int64_t step) const;
  /// Sends the votes that may be sent. REQUIRES: no lock is held.
  void send_votes();
  comm::Header header_of(std::int64_t version, std::int64_t message, Rank of) const;

  const Plan& plan_;
  const LocalPlan& local_;
  const GuardSpec spec_;
  const TransferEnv env_;
  const GuardLayout layout_;
  mutable std::mutex mutex_;
  std::int64_t first_ = 0;
  std::int64_t under_way_ = -1;  // the version that is guarded now
  std::int64_t copied_ = -1, whole_ = -1;
  std::int64_t missing_ = 0;              // parts of the version under way
  std::map<Rank, std::int64_t> untaken_;  // messages of a part that have not come
  std::int64_t unsent_ = 0;
  std::vector<Held> held_;
  bool stopped_ = false;
};

}  // namespace troupe::runtime
