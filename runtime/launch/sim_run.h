// SimRun: what a simulated job tells beside its result (App::simulate, sim_cluster.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "placement/mesh.h"
#include "runtime/elastic/job_result.h"
#include "runtime/session/session.h"

namespace troupe::runtime {

/// A fault that has found something to disturb.
struct SimHit {
  std::size_t fault = 0;  ///< which of SimClusterOptions::faults, in the order of their events
  std::int64_t at_ns = 0;
};

struct SimRun {
  std::string params_hash;
  std::vector<StepResult> steps;      ///< without their reports
  std::vector<std::int64_t> told_ns;  ///< when the application was told of each
  SumState sums;                      ///< of the last version
  std::int64_t virtual_ns = 0;
  std::int64_t messages = 0;   ///< that reached the coordinator
  std::int64_t events = 0;     ///< of clock and network, and calls for the coordinator's time
  std::int64_t fault_ns = -1;  ///< when the first fault was due; -1: none was
  std::vector<SimHit> hits;
  std::int64_t begun_ns = -1;  ///< when all places were ready for the first time; -1: never
  /// Pairs of places, the lower first, that have exchanged messages in any generation. Of a job that recovers.
  std::set<std::pair<Rank, Rank>> linked;
  std::int64_t late_orders = 0;  ///< messages of other generations that places have dropped
  int restarts = 0;              ///< processes that were started anew
  int changes = 0;               ///< requests to change that the coordinator has taken
  int dismissed = 0;             ///< places that the job had no use for any more
  bool suspected = false;  ///< a place said that it had lost a peer before the coordinator knew, and before the end
  /// Rolling hash of what happened, in its order, each with its time: messages to and from the coordinator when they
  /// were sent and when they arrived (whether they were taken, too), faults, ends of processes, data messages when they
  /// were delivered (sender, receiver, header, payload), acts of all actors when they were done.
  std::uint64_t digest = 0;
};

/// How a simulated job ended, whatever happened to it.
struct SimOutcome {
  JobResult job;
  SimRun run;  ///< until then
};

}  // namespace troupe::runtime
