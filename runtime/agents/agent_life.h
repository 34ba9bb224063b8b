// AgentLife: what an agent does from one connection with a job to the next: says who it is, serves the job that takes
// its machine, parts from one that says nothing any more, keeps what its places had in memory, and tries again. Without
// clock, thread or socket: a process (agent_process.cpp) and a simulation (runtime/launch/sim_machines.h) bring it its
// events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/agents/agent.h"

namespace troupe::runtime {

struct AgentLifeOptions {
  Joins who;                      ///< what it says of its machine, but for `kept`
  std::string job;                ///< for people: where it joins
  std::int32_t wait_ms = 0;       ///< for how long the job may not be reached before the agent gives up
  int killed_ms = 0;              ///< as Agent::keep
  std::function<void()> on_join;  ///< the job has taken the machine; may be empty
};

/// Not thread-safe. Times are of one clock that never goes back.
class AgentLife {
 public:
  static constexpr std::int64_t ms = 1'000'000;
  static constexpr std::int64_t retry_ns = 200 * ms;  ///< between two attempts to reach the job
  /// For one attempt to reach the job. The system asks ever more seldom whether a peer that is cut off is there.
  static constexpr std::int64_t attempt_ns = 5'000 * ms;
  static constexpr std::int64_t patience_least_ns = 10'000 * ms;
  /// For so long a job may say nothing that has taken the machine with this budget (Welcome).
  static constexpr std::int64_t patience_ns(std::int64_t budget_ns) {
    return std::max(agent_patience * budget_ns, patience_least_ns);
  }

  /// `send`: a message over the connection that is open now. Error: it is broken.
  AgentLife(AgentLifeOptions options, std::function<Status(const FromAgent&)> send, std::int64_t now_ns,
            const Agent::MakeProcesses* make = nullptr);

  Agent& agent() { return agent_; }

  // ---- a connection -----------------------------------------------------------------------------------

  /// A connection is being made. Returns until when it must be open.
  std::int64_t connects(std::int64_t now_ns);
  /// The job has proved that it may be joined.
  void opened(std::int64_t now_ns);
  /// Something of a message has come.
  void heard(std::int64_t now_ns) { heard_ns_ = now_ns; }
  /// A message has come. After Finish the connection is over once what was said is sent.
  void take(const ToAgent& message, std::int64_t now_ns);
  /// After each wait: tells what has ended, and that this machine lives.
  void turn(std::int64_t now_ns);
  /// The connection is broken, or must not be used any more; `for_good`: the agent does not try again.
  void breaks(const Status& why, bool for_good = false) { ends(why.in(options_.job), for_good); }
  /// No connection can be made. `why` names where.
  void cannot_connect(const Status& why) { ends(why, false); }
  /// Whether it is over: parted() comes next.
  bool over() const { return over_; }
  bool is_open() const { return open_; }
  /// The job has taken the machine.
  bool is_taken() const { return budget_ns_ > 0; }
  /// For how long the job may be heard nothing of; 0: it has not taken the machine.
  std::int64_t budget_ns() const { return budget_ns_; }

  // ---- between connections ----------------------------------------------------------------------------

  /// The connection is over, or could not be made (breaks()). Returns how the agent ends; nullopt: it tries again after
  /// retry_ns.
  std::optional<Status> parted(std::int64_t now_ns);

 private:
  void tell(const FromAgent& message);
  void ends(const Status& why, bool for_good);

  const AgentLifeOptions options_;
  const std::function<Status(const FromAgent&)> send_;
  Agent agent_;
  Kept kept_;                // of the last job that has taken the machine
  std::int64_t lost_ns_;     // since then no job has it
  std::string told_;         // to people: why it tries again
  std::int64_t now_ns_ = 0;  // of the last event
  // Of the connection.
  std::int64_t begun_ns_ = 0, sent_ns_ = 0, heard_ns_ = 0, looked_ns_ = 0, budget_ns_ = 0;
  bool open_ = false, over_ = true, finished_ = false, for_good_ = false;
  Status why_;
};

}  // namespace troupe::runtime
