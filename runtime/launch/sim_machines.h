// SimMachines: a job on several machines, in one thread: its process (RunningJob, Gathering, KeptRun), an agent on each
// machine (AgentLife), and the processes of their places, all of them the production classes over simulated clock,
// network and devices. What happens to them, at the n-th event: places are lost; machines are lost, frozen, cut off
// from the job or from each other, one way or both, and come back; agents are killed; other machines join; the process
// of the job is lost, and begins again with what agents have kept.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/launch/app.h"
#include "runtime/launch/sim_cluster.h"

namespace troupe::runtime {

struct SimMachineFault {
  enum class Kind : std::uint8_t {
    kill,          ///< a place: its process ends, as by SIGKILL. `which` counts those that live, here and below
    crash,         ///< a place: as by SIGSEGV
    hang,          ///< a place: as by SIGSTOP
    pause,         ///< a place: as by SIGSTOP and SIGCONT, `for_ns` later
    blip,          ///< between two places, for less than a second
    machine_lost,  ///< without a goodbye; it comes back `for_ns` later with a fresh agent
    replaced,      ///< the same, but another machine comes in its place
    agent_killed,  ///< its processes end with it; another agent is started `for_ns` later
    frozen,        ///< the machine stops, and goes on `for_ns` later
    cut_off,       ///< no message passes between machine and job for `for_ns`
    cut_to,        ///< none from the job to the machine
    cut_from,      ///< none from the machine to the job
    delayed,       ///< messages between machine and job take up to late_most_ns longer, for `for_ns`
    apart,         ///< no message passes between the places of two machines for `for_ns`
    joins,         ///< another machine joins
    job_lost,      ///< the process of the job ends, and begins again `for_ns` later
    job_stopped,   ///< it stops, as by SIGSTOP, and goes on `for_ns` later
    interrupt,     ///< the job is asked to end
    // Of a job with a store:
    store_away,      ///< the store answers no call for `for_ns`
    store_cut,       ///< it does not answer the process that leads
    leader_cut_off,  ///< no message passes between the machine of the process that leads and all others, nor the store
    leader_lost      ///< as machine_lost, the machine of the process that leads
  };
  static constexpr std::int64_t late_most_ns = 400'000'000;
  std::int64_t at_event = 0;
  Kind kind = Kind::kill;
  std::uint32_t which = 0, peer = 0;  ///< a machine or a place, counted in what there is then; peer: another one
  std::int64_t for_ns = 0;
};

/// What is wrong with these machines, for tests that must notice.
enum class SimMachinesFlaw : std::uint8_t {
  none,
  claims_newer,  ///< an agent that comes back says that its memory has a version more than it has
  joins_twice,   ///< an agent of a machine joins once more, under another name, while it serves the job
  two_leaders,   ///< agents that come back name the generation before theirs: a job begins in one that there was
  // Of a job with a store:
  compares_not,     ///< the store's compare-and-set does not compare, and a lease keeps no other process out
  enters_unclaimed  ///< a generation is entered before the store has given it
};

struct SimMachinesOptions {
  std::uint64_t seed = 0;
  std::vector<std::int32_t> machines;  ///< places that each takes; the job needs JobOptions::machines.count of them
  std::vector<SimMachineFault> faults;
  /// The job has a store, in which the lease of its leader lasts so long: agents take the place of a process that is
  /// lost, of which the first runs on the first machine. 0: none, and a process that is lost begins again.
  std::int64_t lease_ms = 0;
  /// Of each process of the job, but for what tells of a session.
  JobOptions job;
  /// The session of a process of the job that begins with this version, and writes its lines anew from there.
  std::function<SessionOptions(std::int64_t first)> session;
  /// How many lines the last session has written, of a job that begins again.
  std::function<std::int64_t()> lines;
  /// As CoordinatorOptions::replan, where JobOptions::replaces is false.
  std::function<Expected<ChosenPlan>(const Plan& before, std::int64_t places)> replan;
  SimMachinesFlaw flaw = SimMachinesFlaw::none;
  std::int64_t virtual_most_ns = 3'600'000'000'000;  ///< the run ends there, as one that never ends
};

/// A fault that has found something to disturb.
struct SimMachineHit {
  SimMachineFault::Kind kind = SimMachineFault::Kind::kill;
  std::int64_t at_ns = 0, until_ns = 0;  ///< the second: when what it has stopped goes on
};

/// A process of the job.
struct SimJobProcess {
  std::int64_t first = 0;         ///< the version with which it has begun
  std::int64_t lines_before = 0;  ///< that were written then
  std::uint32_t first_generation = 0, last_generation = 0;
  bool lost = false;
  bool replaced = false;  ///< a later one has begun while it lived
  int exit_code = -1;     ///< -1: it has not ended by itself
};

struct SimMachinesOutcome {
  JobResult job;  ///< of the last process
  /// Without that of a single job's own: params_hash, times of steps, digest, events, linked.
  SimRun run;
  std::vector<SimMachineHit> hits;
  std::vector<SimJobProcess> processes;
  std::vector<Incident> incidents;      ///< of all processes, as they closed
  bool kept_nothing = false;            ///< a process of the job began again, and found nothing to go on from
  int agents_refused = 0;               ///< that have ended since the job has refused them, or could not be reached
  int machines_given_up = 0;            ///< links to agents that the job has let go of
  std::vector<std::string> violations;  ///< of what must hold at every event
};

/// Runs the job to its end.
SimMachinesOutcome simulate_machines(const Plan& plan, const kernels::OpSet& ops,
                                     const actors::UserActorSet& user_actors, const SimMachinesOptions& options);

}  // namespace troupe::runtime
