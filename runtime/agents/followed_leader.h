// Which leader of its job an agent follows, and when it takes the place of one that is lost: by what the job's store
// says, and by what the agent hears. Without store, clock or socket: the process of an agent (agent_process.cpp,
// apps/machines/leader_watch.h) and a simulation (runtime/launch/sim_machines.h) ask.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "devices/base/status.h"
#include "runtime/store/store.h"

namespace troupe::runtime {

/// Not thread-safe. Times are of one clock that never goes back.
class FollowedLeader {
 public:
  static constexpr std::int64_t silent_ns = 2'000'000'000;  ///< as heard(), before a leader has said another time

  explicit FollowedLeader(Expected<std::string> at) : at_(std::move(at)) {}
  /// A connection is about to be made, to the leader that the store names now. One that the agent has not heard of
  /// before is given time to be heard.
  void connects(Expected<std::string> now, std::int64_t now_ns) {
    if (now.ok() && (!at_.ok() || *at_ != *now)) heard_ns_ = now_ns;
    at_ = std::move(now);
  }
  /// HOST:PORT. Error: the store names none.
  const Expected<std::string>& at() const { return at_; }
  /// The leader has said something. `silent_ns`: for so long it may say nothing.
  void heard(std::int64_t now_ns, std::int64_t silent_ns) { heard_ns_ = now_ns, silent_ns_ = silent_ns; }
  /// Whether it has said something within that time.
  bool hears(std::int64_t now_ns) const { return heard_ns_ >= 0 && now_ns - heard_ns_ < silent_ns_; }
  /// Not ok: the store names another leader than the one to which the connection is, which breaks.
  Status leaves(const Expected<std::string>& now) const {
    if (!now.ok() || (at_.ok() && *now == *at_)) return {};
    return Status(Code::unavailable, "its leader is now at " + *now);
  }

 private:
  Expected<std::string> at_;
  std::int64_t heard_ns_ = -1;  // when it has said something for the last time
  std::int64_t silent_ns_ = silent_ns;
};

/// When an agent starts a leader in the place of one that is lost. Not thread-safe.
class TakeOver {
 public:
  static constexpr std::int64_t retry_ns = 5'000'000'000;  ///< of a leader that has ended at once
  static constexpr int tries_max = 3;                      ///< to take the place of one leader

  /// Whether one is started now; counts it. `stored`: what the store said last. `hears`: the agent hears the leader,
  /// which leads on then, whatever the store says.
  bool is_due(const std::optional<StoredClaim>& stored, bool hears, std::int64_t now_ns) {
    if (!stored || stored->leader_lives || hears || is_given_up(*stored)) return false;
    if (tried_ != stored->claim.generation) tried_ = stored->claim.generation, tries_ = 0, next_ns_ = 0;
    if (tries_ >= tries_max || now_ns < next_ns_) return false;
    ++tries_;
    next_ns_ = now_ns + retry_ns;
    return true;
  }
  /// Whether the run is given up (is_given_up), and has been for as long as a leader that lives may take to renew its
  /// lease, if only the store was away. `leads`: a leader that this agent has started lives.
  bool gives_up(const std::optional<StoredClaim>& stored, bool hears, bool leads, std::int64_t now_ns) {
    if (!stored || !is_given_up(*stored) || hears || leads) given_up_since_ns_.reset();
    else if (!given_up_since_ns_) given_up_since_ns_ = now_ns;
    return given_up_since_ns_ && now_ns - *given_up_since_ns_ >= retry_ns;
  }
  /// This machine cannot take the place of that leader.
  void give_up() { tries_ = tries_max; }

 private:
  JobGeneration tried_;  // in whose place leaders were started here
  int tries_ = 0;        // how often, without a new generation
  std::int64_t next_ns_ = 0;
  std::optional<std::int64_t> given_up_since_ns_;
};

}  // namespace troupe::runtime
