// SimCluster: a whole job in one thread. Session, workers, actors, transports, devices: the production
// classes over simulated clock, network and device, with CAF's testing scheduler. The same seed gives the
// same run, message for message; another seed gives other timings and the same numbers (NU-1 runs).
#pragma once

#include "comm/sim/sim_network.h"
#include "runtime/session/session.h"
#include "runtime/worker/worker.h"

namespace troupe::runtime {

struct SimClusterOptions {
  /// orders runnable actors and jitters the network; 0: first come, no jitter
  std::uint64_t seed = 0;
  bool run_kernels = true;
  comm::SimLink link;          ///< between every two places
  Storage* storage = nullptr;  ///< for plans with snapshots, and to restore from
  CheckpointTarget save;
  SnapshotObserver* snapshots = nullptr;  ///< null: no checkpoints are taken
  std::string restore;
  /// the run fails (`unavailable`) at the session's n-th message; -1: never
  std::int64_t stop_after = -1;
};

struct SimRun {
  std::string params_hash;
  std::vector<StepResult> steps;
  SumState sums;  ///< of the last version
  std::int64_t virtual_ns = 0;
  std::int64_t messages = 0;  ///< that reached the session
  /// Rolling hash of all that happened, in its order, each with its time: messages to and from the session, data
  /// messages when they were delivered (sender, receiver, header, payload), acts of all actors when they were done.
  std::uint64_t digest = 0;
};

/// Runs a plan to its end. The callbacks of `session` are called as in production. Error: a failed worker; no progress,
/// with Session::waits_for; divergence, after the programs that read versions before have closed, or another error has
/// ended the wait for them.
Expected<SimRun> run_simulated(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                               SessionOptions session, const SimClusterOptions& options = {});

}  // namespace troupe::runtime
