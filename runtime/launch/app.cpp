#include "runtime/launch/app.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "checkpoint/catalog.h"
#include "comm/ucx/ucx_signals.h"
#include "devices/base/philox.h"
#include "devices/cpu/cpu_device.h"
#include "devices/files/file_storage.h"
#include "devices/host_memory.h"
#include "devices/parallel.h"
#include "devices/process/descriptors.h"
#include "devices/sim/sim_loop.h"
#include "kernels/processor.h"
#include "runtime/agents/launcher.h"
#include "runtime/launch/job.h"
#include "runtime/launch/last_words.h"
#include "runtime/launch/sim_cluster.h"
#include "runtime/place/local_plan.h"
#include "runtime/plan/plan_io.h"
#include "runtime/session/control.h"
#include "runtime/verify/verify.h"

namespace troupe::runtime {

namespace {

/// A file that grows to the process's limit (ulimit -f) becomes an error of the call that writes, as a full disk is.
void outlive_file_limit() {
  struct sigaction action {};
  if (::sigaction(SIGXFSZ, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) ::signal(SIGXFSZ, SIG_IGN);
}

/// The worker process that has called serve_if_worker; 0: none has. A process that it forks inherits the number, and
/// loses it when it executes a program.
pid_t serving = 0;

}  // namespace

void App::serve_if_worker(int argc, char** argv) const {
  comm::give_back_signals();
  outlive_file_limit();
  if (argc < 3 || std::strcmp(argv[1], worker_flag) != 0) return;
  const int fd = std::atoi(argv[2]);
  // A process that an actor starts must not keep the link open: the worker's death would not show.
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  const int memory_fd = argc > 3 ? std::atoi(argv[3]) : -1;
  if (memory_fd >= 0) ::fcntl(memory_fd, F_SETFD, FD_CLOEXEC);
  end_with_words("worker", exit_worker);
  name_act_of_crash();
  serving = ::getpid();
  const int code = worker_process(fd, memory_fd, ops_, actors_, accelerator_.get());
  std::fflush(nullptr);
  // Skips the static destructors of libraries: none matters here, and some (UCX, oneDNN) are slow.
  ::_exit(code);
}

namespace {

/// Error: this process is a worker, or was forked by one, and a job of its own would start workers that start workers.
/// Where main has not called serve_if_worker, tells the parent's session, too: the program may not print the error. A
/// worker that serves speaks with the session itself: nothing else may write on its link.
Status check_no_worker() {
  constexpr const char* where = "run a job in main, or in a program that the actor starts";
  if (serving == ::getpid())
    return invalid(fmt::format("this process is a worker that serves a job, and cannot run another: {}", where));
  if (serving != 0)
    return invalid(
        fmt::format("this process was forked by a worker (pid {}), and cannot run a job: {}", serving, where));
  const auto fd = link_of_this_worker();
  if (!fd) return {};
  const Status s = invalid(fmt::format(
      "this process is a worker ({}): call App::serve_if_worker in main before the job is run", worker_flag));
  ControlLink link(::fcntl(*fd, F_DUPFD_CLOEXEC, 0));  // `fd` itself stays open until the process ends
  std::deque<ControlFrame> heard;                      // the first frame tells this worker's generation
  while (heard.empty() && link.receive(heard).ok()) {}
  if (!heard.empty()) (void)link.send(heard[0].of, encode(FromWorker(WorkerFailed{"", s}))).ok();
  return s;
}

/// All workers of this machine together must fit in its memory.
Status check_memory(const Plan& plan, std::int64_t bytes_max) {
  TROUPE_ASSIGN(const std::int64_t need, needed_bytes(plan));
  const auto have = bytes_max > 0 ? static_cast<std::size_t>(bytes_max) : available_host_bytes();
  if (static_cast<std::size_t>(need) <= have) return {};
  constexpr std::int64_t mib = 1 << 20;
  return Status(Code::exhausted,
                fmt::format("the plan needs {} MiB for its {} workers and {}{} MiB{}: use a smaller model or a smaller "
                            "schedule.microbatch{}",
                            (need + mib - 1) / mib, plan.workers(), bytes_max > 0 ? "may use " : "this machine has ",
                            have / mib, bytes_max > 0 ? "" : " available",
                            plan.pipeline.ahead > 0 ? ", or fewer microbatches ahead (schedule.ahead)" : ""));
}

/// Error: a job of this plan cannot go on when a worker is lost.
Status check_recovers(const Plan& plan, const SessionOptions& session) {
  if (!plan.trains())
    return invalid("JobOptions::recovers is set, and the plan trains nothing: its job can begin again");
  if (!plan.recoverable())
    return invalid(
        "JobOptions::recovers is set, and updates of the plan overwrite what they read: compile it with "
        "CompileOptions::keeps_version, or with keeps_copies");
  if (plan.keeps_copies() && session.copy_every < 1)
    return invalid(
        fmt::format("JobOptions::recovers is set, and SessionOptions::copy_every is {}: a plan with copies "
                    "needs 1 or more steps between them",
                    session.copy_every));
  for (const PlanRole& role : plan.roles)
    for (const PlanChannel& c : role.channels)
      if (plan.keeps_version() && c.kind == PlanChannel::Kind::parameter && c.slots < 2)
        return invalid(
            "JobOptions::recovers is set, and '" + c.name +
            "' has parameters that no update writes, so that no version says whether they are whole: compile "
            "the plan with CompileOptions::keeps_copies");
  if (plan.step_spec().stateful)
    return invalid("JobOptions::recovers is set, and ops of program '" + plan.programs[plan.step_program()].name +
                   "' keep state from one microbatch to the next, which no new worker has");
  return {};
}

/// Error: the plan has an op or an actor that this program does not have. A worker would say so, too, but later.
Status check_registered(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& kinds) {
  for (std::int32_t s = 0; s < std::ssize(plan.roles); ++s) {
    TROUPE_TRY(check_ops(plan, s, ops));
    for (const PlanActor& a : plan.roles[static_cast<std::size_t>(s)].actors)
      if (a.kind == PlanActor::Kind::user && kinds.count(a.ops[0].op) == 0)
        return invalid(fmt::format(
            "actor '{}' is of kind '{}', which this program does not register: see App::actor, before serve_if_worker",
            a.ops[0].name, a.ops[0].op));
  }
  return {};
}

/// Error: an actor of the plan is of a kind whose acts follow from earlier ones.
Status check_acts_by_call(const Plan& plan, const std::set<std::string>& by_history) {
  for (const PlanRole& role : plan.roles)
    for (const PlanActor& a : role.actors)
      if (a.kind == PlanActor::Kind::user && by_history.count(a.ops[0].op) > 0)
        return invalid(fmt::format(
            "JobOptions::recovers is set, and actor '{}' is of kind '{}', whose acts follow from earlier "
            "acts (ActsBy::history): a new worker would not have them. Make it a function of inputs, step and "
            "microbatch, or run without recovery",
            a.ops[0].name, a.ops[0].op));
  return {};
}

/// Every compute thread must have a core of its own.
Status check_cores(const Plan& plan, int threads) {
  const auto need = static_cast<std::size_t>(plan.workers()) * static_cast<std::size_t>(threads);
  const auto have = usable_cores().size();
  if (need <= have) return {};
  return Status(Code::exhausted, fmt::format("pinning {} workers of {} compute threads needs {} cores and this process "
                                             "may use {}: use fewer threads or workers, or do not pin",
                                             plan.workers(), threads, need, have));
}

/// What is to be said of JobOptions::device; empty: nothing.
std::string wrong_device(const std::string& device) {
  const auto colon = device.find(':');
  const std::string expected = "expected 'cpu', 'cuda', or 'cuda:' and numbers with commas between them";
  if (device == "cpu" || (!device.empty() && colon == std::string::npos)) return "";
  if (device.empty() || colon == 0 || device.substr(0, colon) == "cpu" || colon + 1 == device.size() ||
      device.back() == ',')
    return expected;
  int digits = 0;  // of this number, before this character
  for (std::size_t i = colon + 1; i < device.size(); ++i) {
    const bool digit = device[i] >= '0' && device[i] <= '9';
    if ((!digit && (device[i] != ',' || digits == 0)) || digits > 3) return expected + ", each below 10000";
    digits = digit ? digits + 1 : 0;
  }
  return "";
}

/// Error: a number of `o` that is out of its range; a throttle of a link that no two workers have.
Status check_ranges(const JobOptions& o, Rank workers) {
  const auto refuse = [](const std::string& name, auto value, const std::string& expected) {
    return invalid(fmt::format("JobOptions::{} is {}: {}", name, value, expected));
  };
  constexpr double paced_max = 1e9;                                   // a kernel's second then is thirty years
  constexpr std::int64_t latency_max_ns = 100'000ll * 1'000'000'000;  // as long as the command takes
  if (o.threads < 1) return refuse("threads", o.threads, "use 1 or more");
  if (const auto wrong = wrong_device(o.device); !wrong.empty()) return refuse("device", o.device, wrong);
  if (!(o.paced >= 0 && o.paced < paced_max))
    return refuse("paced", o.paced, fmt::format("use 0 for kernels that compute, or a scale below {:g}", paced_max));
  if (o.paced > 0 && o.device != "cpu")
    return refuse("paced", o.paced, "a paced job computes on the 'cpu', or not at all: leave the device out");
  if (!o.run_kernels && o.paced == 0) return refuse("run_kernels", o.run_kernels, "only a paced job may do without");
  if (o.detect_budget_ms < 100 || o.detect_budget_ms > 600'000)
    return refuse("detect_budget_ms", o.detect_budget_ms, "use 100 to 600000");
  if (o.grace_s < 0 || o.grace_s > 86'400) return refuse("grace_s", o.grace_s, "use 0 to 86400");
  if (o.spares < 0 || o.spares > 1024) return refuse("spares", o.spares, "use 0 to 1024");
  if (o.machines.count < 0 || o.machines.count > 65'536)
    return refuse("machines.count", o.machines.count, "use 0 for this machine, or 1 to 65536");
  if (o.machines.count > 0 &&
      (o.machines.listen.empty() || (o.machines.token_file.empty() && o.machines.token.empty())))
    return refuse("machines.count", o.machines.count, "say where agents join (listen), and with which token_file");
  if (o.machines.count > 0 && o.pin)
    return invalid(
        "cores are pinned (--pin, JobOptions::pin), and the job has other machines, whose cores are not known here");
  if (o.machines.count_min < 1 || o.machines.count_min > std::max(1, o.machines.count))
    return refuse("machines.count_min", o.machines.count_min, "use 1 to machines.count");
  if (o.places_together < 1) return refuse("places_together", o.places_together, "use 1 or more");
  if (o.machines.wait_s < 1) return refuse("machines.wait_s", o.machines.wait_s, "use 1 second or more");
  if (o.stall_s < 1) return refuse("stall_s", o.stall_s, "use 1 second or more");
  if (o.memory_bytes_max < 0)
    return refuse("memory_bytes_max", o.memory_bytes_max, "use 0 for what the machine has, or a number of bytes");
  if (o.trace.first < 0 || o.trace.steps < 0)
    return refuse("trace", fmt::format("{} steps from step {}", o.trace.steps, o.trace.first), "use 0 or more of each");
  for (std::size_t i = 0; i < o.throttle.size(); ++i) {
    const comm::Throttle& t = o.throttle[i];
    const std::string name = fmt::format("throttle[{}]", i);
    if (t.latency_ns < 0 || t.latency_ns > latency_max_ns)
      return refuse(name + ".latency_ns", t.latency_ns, fmt::format("use 0 to {}", latency_max_ns));
    if (t.bytes_per_second < 0)
      return refuse(name + ".bytes_per_second", t.bytes_per_second, "use 0 for no limit, or a rate");
    if (std::min(t.a, t.b) < -1 || std::max(t.a, t.b) >= workers || (t.a == t.b && t.a >= 0))
      return refuse(name, fmt::format("of ranks {} and {}", t.a, t.b),
                    fmt::format("use two different ranks below {}, or -1 for any", workers));
  }
  return {};
}

/// Where descriptors run out, UCX says another reason, or none.
Status check_descriptors(std::int64_t workers, bool recovers) {
  const std::int64_t need = descriptors_of(workers, recovers), have = descriptors_max();
  if (need <= have) return {};
  return Status(Code::exhausted, fmt::format("{} workers need {} file descriptors in each process, and a process may "
                                             "have {} here: raise the limit (ulimit -n {})",
                                             workers, need, have, need));
}

/// A job that begins from a checkpoint begins with its version, goes on as its job, and has its state of sums where the
/// caller names none. From one of step 0 a run begins, and several may: each is a job of its own. Returns the
/// checkpoint's manifest; nullopt: the job begins from initial values.
Expected<std::optional<checkpoint::Manifest>> begin_where_saved(const Plan& plan, Storage& storage, JobOptions& o) {
  if (o.checkpoint.restore.empty()) return std::optional<checkpoint::Manifest>();
  auto manifest = checkpoint::read_manifest(storage, o.checkpoint.restore);
  if (manifest.status().code() == Code::not_found)  // as in a worker
    return Status(Code::damaged,
                  manifest.status().message() +
                      ": CheckpointOptions::restore names the folder of one checkpoint (Catalog finds it)");
  if (!manifest.ok()) return manifest.status();
  if (o.session.first_step != manifest->stamp.step)
    return invalid(fmt::format(
        "'{}' is of step {}, and the job would begin with step {}: set SessionOptions::first_step to the checkpoint's",
        o.checkpoint.restore, manifest->stamp.step, o.session.first_step));
  if (!o.session.sums) {
    TROUPE_ASSIGN(o.session.sums, sums_of(*manifest, plan));
  }
  o.checkpoint.job = manifest->stamp.step > 0 ? manifest->stamp.job : 0;
  return std::optional(*std::move(manifest));
}

/// Locks the folder of checkpoints, until the job ends. Error, with `code` the exit code for it: another run has it, or
/// it has checkpoints of a run that this job does not go on from, which the job's pruning could remove.
Status take_folder(Storage& storage, CheckpointOptions& o, const checkpoint::Manifest* from, int& code) {
  if (o.dir.empty() || o.lock) return {};  // who has locked the folder has looked into it
  const checkpoint::Catalog catalog(storage, o.dir);
  TROUPE_ASSIGN(o.lock, catalog.lock());
  TROUPE_ASSIGN(const auto foreign, catalog.foreign(from));
  if (!foreign) return {};
  code = exit_output;
  return invalid(
      fmt::format("checkpoint '{}' is of a run that this job does not go on from, and could be pruned: set "
                  "CheckpointOptions::restore to go on from it, save into another folder, or remove it",
                  catalog.path(*foreign)));
}

/// Runs each task as it is submitted.
class StreamAtOnce final : public Stream {
 public:
  const std::string& name() const override { return name_; }
  void submit(Task task) override {
    SerialParallel serial;
    if (task.on_start) task.on_start();
    if (task.work) task.work(serial);
    if (task.on_done) task.on_done(0, 0);
  }
  void quiesce() override {}

 private:
  const std::string name_ = "checkpoints";
};

/// Takes what a job reads and writes of checkpoints. Error, with `code` the exit code for it.
Status take_checkpoints(const Plan& plan, JobOptions& o, int& code) {
  FileStorage storage;
  code = exit_checkpoint;
  TROUPE_ASSIGN(const auto from, begin_where_saved(plan, storage, o));
  return take_folder(storage, o.checkpoint, from ? &*from : nullptr, code);
}

}  // namespace

Status App::check_device(const std::string& device) const {
  const std::string kind = device.substr(0, device.find(':'));
  if (kind == "cpu" || (accelerator_ && accelerator_->kind == kind)) return {};
  return invalid(
      fmt::format("device '{}': this program has no devices of kind '{}': build it where the CUDA toolkit is "
                  "found, or compute on 'cpu'",
                  device, kind));
}

Status App::check(const Plan& plan, const JobOptions& options) const {
  TROUPE_TRY(check_job(plan, options));
  TROUPE_TRY(check_device(options.device));
  TROUPE_TRY(check_descriptors(plan.workers() + options.spares, options.recovers));
  return options.pin ? check_cores(plan, options.threads) : Status{};
}

Status App::check_job(const Plan& plan, const JobOptions& options) const {
  TROUPE_TRY(verify(plan));
  TROUPE_TRY(check_registered(plan, ops_, actors_));
  TROUPE_TRY(check_ranges(options, plan.workers()));
  if (options.checkpoint.dir.empty() != (plan.snapshot_slots() == 0))
    return invalid(plan.snapshot_slots() == 0
                       ? "the job has a folder for checkpoints, and its plan takes none: see CompileOptions::snapshots"
                       : "the plan takes checkpoints, and the job has no folder for them: see JobOptions::checkpoint");
  if (options.checkpoint.failures_max < 1)
    return invalid(
        fmt::format("JobOptions::checkpoint.failures_max is {}: use 1 or more", options.checkpoint.failures_max));
  if (options.checkpoint.every < 0 || (options.checkpoint.every > 0 && options.checkpoint.dir.empty()))
    return invalid(fmt::format("JobOptions::checkpoint.every is {}: expected {}", options.checkpoint.every,
                               options.checkpoint.every < 0 ? "0 or more" : "0, since checkpoint.dir names no folder"));
  if (!options.session.feed)
    for (const PlanRole& role : plan.roles)
      for (const PlanChannel& c : role.channels)
        if (c.kind == PlanChannel::Kind::feed)
          return invalid(fmt::format("the graph has feed '{}', and SessionOptions::feed is not set", c.name));
  TROUPE_TRY(check_numbers(plan, options.session));
  TROUPE_TRY(find_parameters(plan, options.session.parameters).status());
  if (options.session.copy_every < 0 || (options.session.copy_every > 0 && !plan.keeps_copies()))
    return invalid(fmt::format("SessionOptions::copy_every is {}: expected {}", options.session.copy_every,
                               options.session.copy_every < 0
                                   ? "0 or more"
                                   : "0, since the plan keeps no copies (CompileOptions::keeps_copies)"));
  if (options.recovers) {
    TROUPE_TRY(check_recovers(plan, options.session));
    TROUPE_TRY(check_acts_by_call(plan, by_history_));
  }
  if (const auto within = options.guard_within;
      within != 0 && (within < guard_within_least || within > guard_within_most))
    return invalid(fmt::format("JobOptions::guard_within is {}: expected {} to {}, or 0 for none", within,
                               guard_within_least, guard_within_most));
  if (options.guard_window_most < 0)
    return invalid(fmt::format("JobOptions::guard_window_most is {}: expected 0 or more", options.guard_window_most));
  if (!options.replaces && (!options.recovers || !options.replan))
    return invalid(
        "JobOptions::replaces is false: set `recovers`, and `replan`, which compiles a plan for fewer workers");
  if (options.spares > 0 && options.replaces)
    return invalid("JobOptions::spares is set, and lost workers come back: set `replaces` to false");
  for (const Injection& i : options.inject) TROUPE_TRY(check_injection(plan, i));
  if (options.machines.count == 0 || options.memory_bytes_max > 0)  // else it is of other machines
    return check_memory(plan, options.memory_bytes_max);
  return {};
}

JobResult App::run(const Plan& plan, JobOptions options) const {
  if (Status s = check_no_worker(); !s.ok()) return {std::move(s), exit_worker, {}, 0, {}};
  if (Status s = kernels::check_processor(); !s.ok()) return {std::move(s), exit_worker, {}, 0, {}};
  if (Status s = options.checked ? Status{} : check(plan, options); !s.ok())
    return {std::move(s), exit_plan, {}, 0, {}};
  int code = exit_ok;
  if (Status s = take_checkpoints(plan, options, code); !s.ok()) return {std::move(s), code, {}, 0, {}};
  return run_job(plan, std::move(options));
}

SimOutcome App::simulate(const Plan& plan, JobOptions options, std::uint64_t seed) const {
  SimOutcome out;
  out.job.exit_code = exit_plan;
  if (out.job.status = options.checked ? Status{} : check_job(plan, options); !out.job.status.ok()) return out;
  for (const PlanRole& role : plan.roles)
    for (const PlanActor& a : role.actors)
      if (a.waits()) {
        out.job.status =
            invalid("actor '" + a.name +
                    "' waits for the outside, which a simulation, in one thread, does not "
                    "reach: simulate a graph in which it has no such attribute, and is given what it waits for");
        return out;
      }
  if (out.job.status = take_checkpoints(plan, options, out.job.exit_code); !out.job.status.ok()) return out;
  FileStorage storage;
  const SimLoop no_time;  // commits take none
  StreamAtOnce disk;
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.storage = &storage;
  cluster.restore = options.checkpoint.restore;
  cluster.run_kernels = options.run_kernels;
  if (options.device != "cpu") {
    if (out.job.status = check_device(options.device); !out.job.status.ok()) return out;
    if (!accelerator_->simulated_queue) {
      out.job.status = invalid("device '" + options.device + "' cannot be simulated: simulate the job on 'cpu'");
      return out;
    }
    cluster.accelerator = accelerator_;
  }
  cluster.on_ready = std::move(options.on_ready);
  std::unique_ptr<CheckpointTracker> checkpoints;
  if (const std::string& dir = options.checkpoint.dir; !dir.empty()) {
    checkpoints = std::make_unique<CheckpointTracker>(plan, options.checkpoint, options.session.first_step,
                                                      options.session.steps, storage, disk, no_time.clock());
    out.job.exit_code = exit_checkpoint;
    // The number of a folder and a seed is always the same, as the digest is; others have others.
    if (out.job.status = checkpoints->begin(philox_key(seed, dir)); !out.job.status.ok()) return out;
    const checkpoint::Stamp& claim = checkpoints->claim();
    cluster.save = {dir, claim.job};
    cluster.generation = {claim.job, claim.generation};
    cluster.snapshots = checkpoints.get();
  }
  const kernels::OpSet ops = cluster.accelerator ? cluster.accelerator->with_bodies(ops_) : ops_;
  return simulate_job(plan, ops, actors_, std::move(options.session), cluster);
}

int App::run_main(const Expected<Plan>& plan, JobOptions options) const {
  const JobResult result = plan.ok() ? run(*plan, std::move(options)) : JobResult{plan.status(), exit_plan, {}, 0, {}};
  if (!result.status.ok()) std::fprintf(stderr, "%s\n", result.status.message().c_str());
  if (result.void_steps > 0)
    std::fprintf(stderr,
                 "%lld of %lld steps were void: a gradient was beyond the range of its exact sum, and no parameter of "
                 "its program was updated\n",
                 static_cast<long long>(result.void_steps), static_cast<long long>(result.committed_steps));
  return result.exit_code;
}

}  // namespace troupe::runtime
