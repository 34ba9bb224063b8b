// App: an application of Troupe is an executable. main() registers ops and actors, lets the App take over
// if this process is a worker, and otherwise builds a graph and runs it:
//
//   int main(int argc, char** argv) {
//     App app;
//     app.actor<Source>("source");
//     app.serve_if_worker(argc, argv);  // workers re-execute this binary and stay here
//     Graph g(app.ops());
//     add_model(g);
//     const auto plan = compile(g, {.stages = stage_meshes({1, 1})});
//     return app.run_main(plan, {.session = {.steps = 10}});
//   }
#pragma once

#include <memory>
#include <set>
#include <string>
#include <type_traits>

#include "actors/user_actor.h"
#include "devices/base/trace.h"
#include "runtime/agents/token.h"
#include "runtime/elastic/job_result.h"
#include "runtime/search/shapes.h"
#include "runtime/session/checkpoint_tracker.h"
#include "runtime/session/session.h"
#include "runtime/worker/accelerator.h"
#include "runtime/worker/injection.h"

namespace troupe::runtime {

class Leadership;   // runtime/store/leadership.h
struct SimOutcome;  // runtime/launch/sim_run.h

/// The machines of a job.
struct JobMachines {
  int count = 0;           ///< so many agents join, from any machine, and have all workers; 0: this machine has them
  std::string listen;      ///< where they join: HOST:PORT
  std::string token_file;  ///< the secret that they share (runtime/agents/token.h)
  std::string token;       ///< the secret itself, instead of its file; as long as a token must be
  std::string joins_by = "troupe agent --join";  ///< what brings an agent here, for people
  /// For how long the job waits for them, and, where it recovers and has lost one, for another one in its place.
  int wait_s = 60;
  /// Of a job that does not replace workers: with how many machines it goes on. With fewer it waits.
  int count_min = 1;
  /// With how many a job begins that goes on for one whose process is lost, where no other one joins for some time; 0:
  /// with `count`.
  int count_to_go_on = 0;
  /// Machines may take part whose kernels make other bits of the same values (kernels::numbers_digest) than those of
  /// the machines that have joined before: bits then depend on which machine computes what. False: they are refused.
  bool mixed_hardware = false;
  /// The job listens at this address, HOST:PORT. An error ends the job. May be null.
  std::function<Status(const std::string& address)> on_listen;
  /// Asked several times a second while the job waits for its agents; an error ends the job. May be null.
  std::function<Status()> give_up;
  /// The lead of this job in its store, which is taken as the job begins to listen, and stays taken when it has ended:
  /// its destructor withdraws it. A job ends with exit_superseded where another process leads it. Null: it has no
  /// store.
  std::shared_ptr<Leadership> lead;

  /// Error: as read_token.
  Expected<TokenKey> key() const { return token.empty() ? read_token(token_file) : Expected<TokenKey>(key_of(token)); }
};

struct GatheredMachines;  // runtime/launch/gather_machines.h
struct KeptRun;           // runtime/launch/kept_run.h

struct JobOptions {
  /// A program of `readers` or a payload of `feed` that the plan does not take ends the job with exit_worker.
  SessionOptions session;
  CheckpointOptions checkpoint;  ///< for plans with CompileOptions::snapshots; `restore` for any plan
  int threads = 1;               ///< of each worker's compute stream: 1 or more
  /// Where places compute: "cpu", or "cuda", "cuda:0", "cuda:0,1": of this kind (App::accelerator), all devices of the
  /// machine, or these, place by place in turn.
  std::string device = "cpu";
  std::string tls;                                 ///< UCX transports; empty: its choice
  std::vector<std::string> net_devices;            ///< UCX network device per rank; empty: see hellos()
  std::vector<std::vector<std::string>> prefixes;  ///< per rank: a command put before the worker's
  TraceWindow trace;                               ///< steps whose spans PlaceResult has
  std::int64_t memory_bytes_max = 0;               ///< of all workers together; 0: what this machine has available
  JobMachines machines;
  /// Ranks r with equal r / places_together are started on one machine where one has room for all of them. Where stages
  /// differ in model axes: the number for the widest, whose models then come first (CompileOptions::models).
  int places_together = 1;
  /// The agents of `machines`, where they were waited for already (open_and_gather); null: the job waits for them.
  std::shared_ptr<GatheredMachines> gathered;
  /// What tells this run from others with the same plan, for agents that keep what it has in memory: its configuration
  /// and the fingerprint of its text, say.
  std::string identity;
  /// What `gathered` have kept of a job whose process is lost, and from which this one goes on: session.first_step and
  /// session.sums are its. Null: nothing.
  std::shared_ptr<const KeptRun> kept;
  bool pin = false;                      ///< each compute thread to a core of its own, rank by rank
  std::vector<comm::Throttle> throttle;  ///< links between workers that are slowed down
  double paced = 0;                      ///< > 0: kernels take what the plan predicts, times this
  bool run_kernels = true;               ///< paced only
  /// The job goes on when a worker is lost: in a new process, which finds parameters and moments where the old one
  /// has left them in memory. For plans with CompileOptions::keeps_version, or with keeps_copies and
  /// SessionOptions::copy_every, of user-defined actors that give the same outputs for the same inputs, step and
  /// microbatch (ActsBy::call).
  bool recovers = false;
  /// Of a job that recovers: how long a worker may say nothing before it counts as hung, and is killed. 100 to 600,000.
  int detect_budget_ms = 2000;
  /// A new worker takes the place of one that is lost; false: it is gone for good, and the job goes on in another
  /// shape. Of a job that recovers, with `replan`.
  bool replaces = true;
  /// Compiles the job's plan for other stages, on a thread of its own. Null: the job keeps its shape.
  Replan replan;
  /// To whose shape a job that has lost places comes back as machines join; null: that with which it begins.
  std::shared_ptr<const Plan> wanted;
  /// CoordinatorOptions::guard_within, of a job on several machines that recovers, whose plan keeps versions.
  std::int64_t guard_within = 0;
  std::int64_t guard_window_most = std::numeric_limits<std::int64_t>::max();  ///< CoordinatorOptions::guard_window_most
  int spares = 0;  ///< workers that are started beside those of the plan, and take the place of one that is gone
  /// Where other processes ask the job what it does, and to go on in another shape (JobSocket); empty: nowhere.
  std::string socket;
  /// Reads the shape that such a request names. Error: there is no such shape.
  std::function<Expected<StageWidths>(const std::string& text)> read_shape;
  /// Of a job that recovers and saves checkpoints: how long the steps that have begun may take after a signal, before
  /// the job ends with the newest version that is whole. 0 to 86,400.
  int grace_s = 20;
  std::vector<Injection> inject;  ///< of a drill
  /// Asked before the job goes on in its next generation, whose actors are made anew and open their files anew. Error:
  /// a file is not what it was: the job ends with exit_data, or refuses the other shape that it is asked for. Of a job
  /// that recovers.
  std::function<Status()> inputs_unchanged;
  /// The job goes on after an incident, or has ended in it. Of a job that recovers.
  std::function<void(const Incident&)> on_incident;
  /// A worker has become slow, or is slow no more; the log has it too (runtime/elastic/stragglers.h).
  std::function<void(const Straggler&)> on_straggler;
  /// App::check has accepted this plan with these options: run skips it
  bool checked = false;
  /// the job ends after so long without progress of any worker (exit_stalled)
  int stall_s = 120;
  /// A line that a worker has put out; null: it goes to the log of this process (devices/base/log.h), whose level is
  /// the workers' too.
  std::function<void(Rank, const std::string&)> on_log;
  std::function<void()> on_ready;  ///< all workers are ready: the first step begins
  /// A signal ends the job with a checkpoint of this version, before SessionOptions::steps. `why`: "interrupted by
  /// Terminated".
  std::function<void(const std::string& why, std::int64_t version)> on_pause;
  /// Asked several times a second: whether what the job prints has no reader any more. Then the job ends as the first
  /// signal ends it, with exit_reader_gone.
  std::function<bool()> reader_gone;
  /// Asked several times a second; an error ends the job with exit_output (a disk that is full, say).
  std::function<Status()> give_up;
};

/// The error of a job that JobOptions::reader_gone has ended.
inline Status reader_gone_error() { return Status(Code::unavailable, "the reader of the standard output has gone"); }

class App {
 public:
  App() : ops_(kernels::standard_ops()) {}
  /// The standard ops and what the application adds.
  const kernels::OpSet& ops() const { return ops_; }
  /// Registers an op. Error: as OpSet::add.
  Status op(kernels::OpDef def) { return ops_.add(std::move(def)); }
  /// Registers a kind of user-defined actor.
  void actor(const std::string& kind, actors::UserActorFactory make, actors::ActsBy acts = actors::ActsBy::call) {
    actors_[kind] = std::move(make);
    if (acts == actors::ActsBy::history) by_history_.insert(kind);
    else by_history_.erase(kind);
  }
  /// Registers class T as a kind of user-defined actor. REQUIRES: T has a constructor that takes a UserActorInfo, or
  /// no argument.
  template <class T>
  void actor(const std::string& kind, actors::ActsBy acts = actors::ActsBy::call) {
    const auto make = [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
      if constexpr (std::is_constructible_v<T, const actors::UserActorInfo&>)
        return std::unique_ptr<actors::UserActor>(new T(info));
      else return std::unique_ptr<actors::UserActor>(new T);
    };
    actor(kind, make, acts);
  }
  const actors::UserActorSet& actors() const { return actors_; }
  /// Registers a kind of device on which places may compute (JobOptions::device), for the ops registered so far and
  /// later.
  void accelerator(Accelerator accelerator) { accelerator_ = std::make_shared<Accelerator>(std::move(accelerator)); }
  /// In a worker process: runs it and does not return. Elsewhere returns. In both, first gives SIGHUP, SIGILL, SIGBUS,
  /// SIGFPE and SIGSEGV, which UCX takes as it is loaded, the effect back that they had, and ignores SIGXFSZ: a file at
  /// its limit (ulimit -f) is an error, as a full disk is. A handler that main has installed stays. REQUIRES: called in
  /// main, after the registrations.
  void serve_if_worker(int argc, char** argv) const;
  /// Checks a plan before a job starts. Error (exit_plan of `run`): the plan does not verify, or has an op or a kind of
  /// actor that is not registered here; its
  /// graph has a feed and SessionOptions::feed is not set; a number of `options` is out of its range; its workers
  /// together need more memory than there is; the job recovers, and the plan keeps nothing to go on from, or has an
  /// actor of ActsBy::history; it takes checkpoints and the job has no folder for them, or the reverse; its processes
  /// need more descriptors than a process may have; with `pin`, more compute threads than cores.
  Status check(const Plan& plan, const JobOptions& options) const;
  /// Starts one worker process per place, runs the job, leaves no process behind however it ends but one that SIGKILL
  /// does not end, which the error names (exit_worker where the job has no other error). A job that restores a
  /// checkpoint begins with its step (error: `first_step` is another) and, where SessionOptions::sums is not set, with
  /// the state of its sums. A job that saves refuses a folder that has checkpoints of another run than the one it goes
  /// on from (exit_output): it could prune them. SIGINT, SIGTERM and SIGHUP, but those that the process began with
  /// ignored (as under nohup), end a job with exit_interrupted: at once, or, where it saves checkpoints, after one of
  /// the step that is under way. Then another SIGINT or SIGTERM, at least a second after the first signal, ends it at
  /// once, and another SIGHUP does nothing. Threads that main has started before must block these three signals, or one
  /// of them takes a signal with its usual effect: the process ends, and saves nothing. In a worker process, and in one
  /// that a worker has forked, starts nothing: error (exit_worker). Where main has not called serve_if_worker, the job
  /// of that worker ends with it.
  JobResult run(const Plan& plan, JobOptions options) const;
  /// Runs the job in the calling thread, over simulated clock, network and devices: the same seed gives the same run,
  /// message for message (SimRun::digest), another one other timings and the same numbers (NU-1 runs). Actors and
  /// kernels compute, checkpoints are written, as in run(): what an application is debugged with. Of `options` it takes
  /// `session`, `checkpoint`, `device`, run_kernels and on_ready, with their callbacks; nothing is lost here, so that
  /// none of recovery's means anything, nor those of processes, machines, signals, drills and traces. Error: as run().
  SimOutcome simulate(const Plan& plan, JobOptions options, std::uint64_t seed) const;
  /// The last line of a main(): runs the plan, prints an error to stderr, returns the exit code.
  int run_main(const Expected<Plan>& plan, JobOptions options) const;

 private:
  /// What check() asks of a job on any machine, and of a simulated one.
  Status check_job(const Plan& plan, const JobOptions& options) const;
  /// Error: a kind of device that the program has not registered.
  Status check_device(const std::string& device) const;

  kernels::OpSet ops_;
  std::shared_ptr<const Accelerator> accelerator_;  ///< null: places compute on this machine's processor only
  actors::UserActorSet actors_;
  std::set<std::string> by_history_;  // kinds of actors that no job may have which recovers
};

/// Runs a worker process whose control link is `fd`, from its first message (PlanBytes) on. `memory_fd`: of memory that
/// outlives it (map_kept); -1: there is none. Returns its exit code.
int worker_process(int fd, int memory_fd, const kernels::OpSet& ops, const actors::UserActorSet& actors,
                   const Accelerator* accelerator = nullptr);

}  // namespace troupe::runtime
