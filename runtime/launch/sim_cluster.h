// SimCluster: a whole job in one thread. Coordinator, session, workers, actors, transports, devices: the production
// classes over simulated clock, network and device, with CAF's testing scheduler. The same seed gives the same run,
// message for message; another seed gives other timings and the same numbers (NU-1 runs). Faults hit at the n-th event
// of a run, not at a time, so that short phases are met as often as long ones.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "comm/sim/sim_network.h"
#include "runtime/elastic/coordinator.h"
#include "runtime/launch/sim_run.h"
#include "runtime/worker/accelerator.h"
#include "runtime/worker/worker.h"

namespace troupe::runtime {

/// What happens to a place, before the event with this number.
struct SimFault {
  enum class Kind : std::uint8_t {
    kill,         ///< its process ends, as by SIGKILL: the parent and its peers learn of it a moment later
    hang,         ///< its process stops, as by SIGSTOP: it neither computes nor answers, and no peer learns of it
    cut,          ///< no message passes between it and `peer` any more, and no peer learns of it
    cut_off,      ///< no message passes between it and the coordinator any more; its peers still reach it
    stale_vote,   ///< its last vote comes of the generation before: for the step that is open now, with another loss
    stale_order,  ///< the last order to begin a step or to commit one reaches it again, of the generation before
    interrupt,    ///< the job is asked to end (Coordinator::interrupt); of no place
    change,       ///< the job is asked to go on with SimClusterOptions::changes[place] (Coordinator::change)
    crash,        ///< as kill, by SIGSEGV: its memory is suspect
    fails,        ///< it says that its process has failed (WorkerFailed without an actor), which ends a moment later
    cut_one_way,  ///< no message passes from it to `peer` any more; those of `peer` still reach it
    blip,         ///< as cut, for blip_least_ns to blip_most_ns
    pause         ///< as hang, for pause_least_ns to pause_most_ns, as by SIGSTOP and SIGCONT
  };
  static constexpr std::int64_t blip_least_ns = 300'000'000, blip_most_ns = 900'000'000;
  static constexpr std::int64_t pause_least_ns = 300'000'000, pause_most_ns = 1'500'000'000;
  /// Whether it has a `peer`.
  static constexpr bool is_of_two(Kind kind) {
    return kind == Kind::cut || kind == Kind::cut_one_way || kind == Kind::blip;
  }
  std::int64_t at_event = 0;
  Kind kind = Kind::kill;
  Rank place = 0, peer = 0;
};

struct SimClusterOptions {
  /// orders runnable actors and jitters the network; 0: first come, no jitter
  std::uint64_t seed = 0;
  bool run_kernels = true;
  std::shared_ptr<const Accelerator> accelerator;  ///< where places compute; null: on the host
  comm::SimLink link;                              ///< between every two places
  Storage* storage = nullptr;                      ///< for plans with snapshots, and to restore from
  CheckpointTarget save;
  JobGeneration generation{1, 2};
  JobCheckpoints* snapshots = nullptr;  ///< null: no checkpoints are taken
  std::string restore;
  /// the run fails (`unavailable`) at the coordinator's n-th message; -1: never
  std::int64_t stop_after = -1;
  std::vector<SimFault> faults;    ///< REQUIRES: of places of the plan, two where it has a peer
  std::function<void()> on_ready;  ///< all places are ready: the first step begins; may be empty
  /// Sees each place that has a worker when the job is over, whatever has happened to it. May be empty.
  std::function<void(Rank, const Worker&)> at_end;
  /// The job goes on when a place is lost. REQUIRES of the plan that it keeps versions.
  bool recovers = false;
  /// A place that is lost is gone for good, and the job goes on with this plan (CoordinatorOptions::replan).
  std::function<Expected<ChosenPlan>(const Plan& before, std::int64_t places)> replan;
  std::vector<ChosenPlan> changes;  ///< with which it may be asked to go on
  Rank spares = 0;                  ///< places that have no rank at first
  /// The machine of each place; empty: all are on one. Places open memory of their machine only.
  std::vector<std::int32_t> machines;
  std::int64_t guard_within = 0;                                              ///< CoordinatorOptions::guard_within
  std::int64_t guard_window_most = std::numeric_limits<std::int64_t>::max();  ///< CoordinatorOptions::guard_window_most
  /// A memory that lies, for tests that must notice: a slot that an update was writing passes for whole.
  bool whole_early = false;
  bool fenced = true;  ///< false: CL-1 (one generation) is broken, for tests that must notice
  /// As JobOptions::stall_s, of virtual time: by default longer than any act of a plan takes, and reached at once where
  /// no event is left.
  int stall_s = 1'000'000'000;
};

/// Runs a plan to its end. The callbacks of `session` are called as in production. A job in which no event is left ends
/// as one that stalls.
SimOutcome simulate_job(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                        SessionOptions session, const SimClusterOptions& options = {});

/// As simulate_job. Error: the job's.
Expected<SimRun> run_simulated(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                               SessionOptions session, const SimClusterOptions& options = {});

}  // namespace troupe::runtime
