// A worker process: gives a Worker its production parts: steady clock, UCX, CPU or paced device, CAF's scheduler. No
// other class knows whether it is simulated (sim_cluster.h has the simulated parts). It lives as long as its place has
// it: one Worker for each generation, each with a transport and actors of its own, over the same memory.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <fstream>

#include "actors/actor_scheduler.h"
#include "comm/link_watch.h"
#include "comm/throttled/cut_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/thread_alarm.h"
#include "devices/cpu/time_slice.h"
#include "devices/files/file_storage.h"
#include "devices/host_memory.h"
#include "devices/paced/paced_device.h"
#include "devices/process/descriptors.h"
#include "runtime/agents/launcher.h"
#include "runtime/launch/app.h"
#include "runtime/launch/worker_control.h"
#include "runtime/launch/worker_log.h"
#include "runtime/place/guard_layout.h"
#include "runtime/plan/plan_io.h"
#include "runtime/verify/verify.h"
#include "runtime/worker/act_watch.h"
#include "runtime/worker/injection.h"
#include "runtime/worker/worker.h"

namespace troupe::runtime {

namespace {

/// Time slice of the threads of actors and network, which run for microseconds and sleep again
/// (devices/cpu/time_slice.h).
constexpr std::int64_t message_slice_ns = 100'000;

/// For the calling thread, and the threads that it starts from then on.
void set_up_scheduling(const std::vector<int>& cores, std::int32_t microbatches_ahead) {
  if (!cores.empty()) keep_to(cores);
  // On cores of its own with microbatches ahead, the compute stream has work while a message waits: no thread of the
  // worker interrupts another (decision 0019). Elsewhere those of messages do, and those that compute take the usual
  // slices again.
  if (cores.empty() || microbatches_ahead == 0 || !stop_preempting()) set_time_slice(message_slice_ns);
}

struct ProductionConfig : caf::actor_system_config {
  ProductionConfig() {
    // It sleeps on a condition variable when idle; CAF's default policy polls, and sleeps up to 10 ms between polls.
    load<actors::ActorScheduler>();
    set("scheduler.max-threads", std::size_t{1});
    set("scheduler.max-throughput", std::size_t{5});
  }
};

/// While this object lives, the parent's death (PR_SET_PDEATHSIG, see launcher.h) does not kill the process; its
/// destructor does then. UCX makes a file in /dev/shm, fills it and only then unlinks it: a kill in between would leave
/// the file.
class DeathWaits {
 public:
  DeathWaits() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGUSR2);
    ::sigprocmask(SIG_BLOCK, &set_, nullptr);
    ::prctl(PR_SET_PDEATHSIG, SIGUSR2);  // SIGTERM and its like are ignored (launcher.cpp)
  }
  ~DeathWaits() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::sigprocmask(SIG_UNBLOCK, &set_, nullptr);
  }
  DeathWaits(const DeathWaits&) = delete;

 private:
  sigset_t set_{};
};

/// Sends the spans that the trace has, in messages of a bounded size.
void send_spans(TraceRecorder& trace, JobGeneration generation, Control& control) {
  constexpr std::ptrdiff_t at_once = 10'000;
  auto taken = trace.take();
  for (auto begin = taken.spans.begin(); begin != taken.spans.end() || taken.dropped > 0; taken.dropped = 0) {
    const auto end = begin + std::min(at_once, taken.spans.end() - begin);
    control.send(generation, Spans{{begin, end}, taken.dropped});
    begin = end;
  }
}

/// The process's resident memory, and its peak. getrusage's ru_maxrss does not serve: it survives exec, so it begins
/// with the peak of the process that forked.
Stopped resident() {
  Stopped out;
  std::ifstream status("/proc/self/status");
  for (std::string key, rest; status >> key; std::getline(status, rest)) {
    auto* bytes = key == "VmHWM:"      ? &out.peak_bytes
                  : key == "RssFile:"  ? &out.file_bytes
                  : key == "RssShmem:" ? &out.shared_bytes
                                       : nullptr;
    if (bytes && status >> *bytes) *bytes <<= 10;
  }
  return out;
}

/// What places have left in their memory, until places have taken their state from there.
class HomeMemory {
 public:
  /// Opens it, and sets what `env` has of it. Error: a memory cannot be opened.
  Status open(const StateHome& home, Rank rank, const Plan& plan, WorkerEnv& env) {
    if (home.areas.empty()) return {};
    if (!home.plan.empty()) {
      TROUPE_ASSIGN(plan_, read_plan(home.plan));
      TROUPE_TRY(check_structure(plan_));
    }
    const Plan& before = home.plan.empty() ? plan : plan_;
    TROUPE_TRY(check_home(home, before, plan));
    env.home = remains_of(home, before);
    for (Rank from = 0; from < std::ssize(home.areas); ++from) {
      areas_.emplace_back();
      std::int64_t at = 0;
      if (opens(home, rank, from)) {
        TROUPE_ASSIGN(areas_.back(), map_to_read(home.areas[static_cast<std::size_t>(from)]));
        TROUPE_ASSIGN(at, offset_in_area(home, before, from, areas_.back()->size()));
      }
      env.home.areas.push_back(areas_.back() ? areas_.back()->data() + at : nullptr);
    }
    return {};
  }
  void close() { areas_.clear(); }

 private:
  Plan plan_;
  std::vector<std::unique_ptr<Buffer>> areas_;
};

/// The heartbeat pings links while this object lives.
class WatchedLinks {
 public:
  WatchedLinks(Heartbeat& heartbeat, std::shared_ptr<comm::LinkWatch> links) : heartbeat_(heartbeat) {
    heartbeat_.watch_links(std::move(links));
  }
  ~WatchedLinks() { heartbeat_.watch_links(nullptr); }
  WatchedLinks(const WatchedLinks&) = delete;

 private:
  Heartbeat& heartbeat_;
};

/// A process, from its first message on.
class PlaceProcess {
 public:
  PlaceProcess(Control& control, int memory_fd, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
               const Accelerator* accelerator)
      : control_(control), memory_fd_(memory_fd), accelerator_(accelerator),
        ops_(accelerator ? accelerator->with_bodies(ops) : ops), user_actors_(user_actors) {}

  /// Returns the exit code.
  int run() {
    if (const auto code = take_plan(control_.next())) return *code;
    for (;;) {
      const ToWorker message = control_.next();
      heartbeat_->enter(control_.generation(), nullptr);
      if (std::holds_alternative<PlanBytes>(message)) {
        if (const auto code = take_plan(message)) return *code;
      } else if (std::holds_alternative<Enter>(message)) {
        if (injector_) injector_->on_cut({}), injector_->pass("enter");  // no transport is open
        if (const auto code = run_generation()) return *code;
        tell(Quiesced{whole()});
      } else if (std::holds_alternative<Abort>(message)) {  // of a generation that it has not entered
        tell(Quiesced{whole()});
      } else if (std::holds_alternative<ExplainAll>(message)) {
        tell(Explained{"waits for the other places to leave their generation\n"});
      } else {
        return fail(invalid("expected the beginning of a generation, got another message"));
      }
    }
  }

 private:
  void tell(const FromWorker& message) { control_.send(control_.generation(), message); }
  int fail(const Status& status) {  // the process itself, not one of its actors
    tell(WorkerFailed{"", status});
    return exit_worker;
  }

  /// A plan, and the message behind it: at first, and when the job goes on in another shape. Returns an exit code where
  /// there is nothing to run.
  std::optional<int> take_plan(const ToWorker& first) {
    const auto second = control_.next();
    const auto* plan_bytes = std::get_if<PlanBytes>(&first);
    const auto* hello = std::get_if<Hello>(&second);
    if (!plan_bytes || !hello) return exit_worker;
    hello_ = *hello;
    set_log_name(fmt::format("worker {}", hello_.place));
    set_log_level(hello_.log_level);
    auto plan = read_plan(plan_bytes->bytes);
    if (!plan.ok()) return fail(plan.status());
    if (const Status s = check_structure(*plan); !s.ok()) return fail(s);
    plan_ = *std::move(plan);
    set_up_scheduling(hello_.cores, plan_.pipeline.ahead);
    if (!trace_) trace_.emplace(hello_.trace);
    if (!heartbeat_) heartbeat_.emplace(control_, hello_.beat_ms);
    std::vector<Injection> injections;
    for (const std::string& text : hello_.injections) {
      auto injection = parse_injection(text);
      if (!injection.ok()) return fail(injection.status());
      injections.push_back(*std::move(injection));
    }
    if (!injections.empty()) injector_.emplace(std::move(injections));
    return take_memory();
  }

  /// The memory of the place, for the plan.
  std::optional<int> take_memory() {
    memory_.reset();
    guards_.reset();
    if (!hello_.memory.empty()) {
      auto opened = open_kept_memory(hello_.memory);
      if (!opened.ok()) return fail(opened.status());
      if (memory_fd_ >= 0) ::close(memory_fd_);
      memory_fd_ = *opened;
    }
    if (memory_fd_ < 0) return {};
    auto local = local_plan(plan_, hello_.rank);
    if (!local.ok()) return fail(local.status());
    // The front of the pool; copies lie apart from it.
    const std::int64_t bytes = plan_.keeps_copies() ? local->kept_bytes() : local->pool_bytes;
    auto memory = map_kept(memory_fd_, static_cast<std::size_t>(local->kept_bytes()), static_cast<std::size_t>(bytes));
    if (!memory.ok()) return fail(memory.status());
    memory_ = *std::move(memory);
    kept_bytes_ = local->kept_bytes();
    return {};
  }

  /// The memory of the place for what it guards, behind that of its state.
  Status take_guards(const GuardRule& rule) {
    guards_.reset();
    if (!rule.on() || !memory_) return {};
    if (std::ssize(rule.machines) != plan_.workers() || !plan_.keeps_version())
      return invalid("guards of another plan");
    const std::int64_t bytes = GuardLayout(plan_, rule.machines).bytes(hello_.rank);
    TROUPE_ASSIGN(guards_,
                  map_behind(memory_fd_, static_cast<std::size_t>(kept_bytes_), static_cast<std::size_t>(bytes)));
    return {};
  }

  /// What lies in the memory of the place. REQUIRES: no worker writes there.
  WholeVersions whole() const {
    if (!memory_) return std::vector<std::int64_t>();
    return whole_versions(plan_, *local_plan(plan_, hello_.rank), memory_->data());
  }

  Expected<std::unique_ptr<comm::UcxTransport>> open_transport() {
    comm::UcxOptions ucx;
    ucx.rank = hello_.rank;
    ucx.job = control_.generation().job;
    ucx.generation = control_.generation().number;
    ucx.tls = hello_.tls;
    ucx.net_devices = hello_.net_device;
    ucx.exit_code = exit_worn;  // it ends so where it leaves a generation: that is no loss
    const auto no_end = control_.keep_alive();
    const DeathWaits until_open;
    return comm::UcxTransport::open(ucx);
  }

  std::unique_ptr<comm::Transport> throttled(std::unique_ptr<comm::Transport> transport) const {
    if (hello_.throttle.empty()) return transport;
    return std::make_unique<comm::ThrottledTransport>(std::move(transport),
                                                      std::make_unique<ThreadAlarm>("alarm", clock_), hello_.throttle);
  }

  /// Where a drill cuts links: what it cuts.
  std::unique_ptr<comm::Transport> cuttable(std::unique_ptr<comm::Transport> transport) {
    if (!injector_ || !injector_->cuts()) return transport;
    auto cut = std::make_unique<comm::CutTransport>(std::move(transport));
    injector_->on_cut([&c = *cut](Rank peer) { c.cut(peer); });
    return cut;
  }

  /// Of a place that recovers; null: nothing would come of a link that is cut.
  std::shared_ptr<comm::LinkWatch> watch_of(comm::Transport& transport, const GuardRule& guard) const {
    if (!memory_) return nullptr;
    const auto local = local_plan(plan_, hello_.rank);
    const JobGeneration of = control_.generation();
    return std::make_shared<comm::LinkWatch>(transport, clock_, peers_with_guards(plan_, *local, guard), of.job,
                                             of.number);
  }

  /// Where the place computes, of the kind that the program has registered. Error: it has not, or there is none.
  Expected<std::unique_ptr<Device>> open_accelerator() const {
    const auto colon = hello_.device.find(':');
    const std::string kind = hello_.device.substr(0, colon);
    if (!accelerator_ || accelerator_->kind != kind)
      return invalid(
          fmt::format("this program has no devices of kind '{}': build it where the toolkit of such devices "
                      "is found, or take 'cpu'",
                      kind));
    const int number = colon == std::string::npos ? -1 : std::atoi(hello_.device.c_str() + colon + 1);
    return accelerator_->open(number, hello_.place, clock_);
  }

  /// Of the host's processor, or paced.
  std::unique_ptr<Device> make_device() const {
    if (hello_.paced > 0) {
      PacedOptions paced;
      paced.scale = hello_.paced;
      paced.run_work = hello_.run_kernels;
      return std::make_unique<PacedDevice>(clock_, paced);
    }
    auto compute_cores = hello_.cores;
    if (!compute_cores.empty()) compute_cores.resize(hello_.threads);
    return std::make_unique<CpuDevice>(clock_, CpuOptions{compute_cores});
  }

  /// From Enter to the end of the job, whose exit code it returns, or to the end of the generation: nullopt.
  std::optional<int> run_generation() {
    const JobGeneration generation = control_.generation();
    auto opened = open_transport();
    if (!opened.ok()) return fail(opened.status());
    tell(WorkerAddress{(*opened)->address()});
    auto after_address = control_.next();
    while (std::holds_alternative<ExplainAll>(after_address)) {
      tell(Explained{"waits for the addresses of its peers\n"});
      after_address = control_.next();
    }
    if (std::holds_alternative<Abort>(after_address)) return {};
    const Connect* connect = std::get_if<Connect>(&after_address);
    if (!connect) return fail(invalid("expected the addresses of the peers, got another message"));
    (*opened)->connect(connect->addresses);
    log_debug("connects to " + counted(std::ssize(connect->addresses) - 1, "peer"));
    const std::unique_ptr<comm::Transport> transport = cuttable(throttled(*std::move(opened)));
    std::optional<WatchedLinks> watched;
    const std::unique_ptr<Device> device = make_device();
    std::unique_ptr<Device> accelerator;
    std::shared_ptr<void> pinned;
    if (!hello_.device.empty() && hello_.device != "cpu") {
      auto opened_device = open_accelerator();
      // not as `unavailable`, which a peer would be
      if (!opened_device.ok()) return fail(invalid(opened_device.status().message()));
      accelerator = *std::move(opened_device);
      if (memory_) {
        auto pins = accelerator->pin(memory_->data(), memory_->size());
        if (!pins.ok()) return fail(pins.status());
        pinned = *std::move(pins);
      }
      accelerator->on_dead([this](const Status& why) {
        tell(WorkerFailed{"", Status(Code::internal, why.message())});
        ::_exit(exit_worker);  // a process can do nothing with a dead device, and cannot open it again
      });
    }
    Stopped stopped;
    {
      ProductionConfig config;
      caf::actor_system system(config);
      WorkerEnv env;
      env.system = &system;
      env.clock = &clock_;
      env.device = device.get();
      if (accelerator) {
        env.device = accelerator.get();
        env.host = device.get();
        env.device_ops = accelerator_->ops.get();
      }
      env.transport = transport.get();
      env.ops = &ops_;
      env.user_actors = &user_actors_;
      env.trace = hello_.trace.steps > 0 ? &*trace_ : nullptr;
      env.threads = hello_.threads;
      env.generation = generation;
      env.run_kernels = hello_.run_kernels;
      env.storage = &storage_;
      env.save = hello_.save;
      (plan_.keeps_copies() ? env.copies : env.pool) = memory_.get();
      if (const Status s = take_guards(connect->guard); !s.ok()) return fail(s);
      env.guards = guards_.get();
      if (guards_) env.guard = connect->guard;
      env.watch = heartbeat_->watch();
      env.injector = injector_ ? &*injector_ : nullptr;
      env.leaves = [&] {
        const bool left = control_.has_newer();
        if (left) transport->abort();  // first: a worker that is not made says goodbye
        return left;
      };
      env.may_send = [&] { watched.emplace(*heartbeat_, watch_of(*transport, connect->guard)); };
      if (connect->adopt >= 0) env.adopt = connect->adopt;
      HomeMemory home;
      if (const Status s = home.open(connect->home, hello_.rank, plan_, env); !s.ok()) return fail(s);
      env.restore = connect->restore;
      env.send = [this, generation](FromWorker message) { control_.send(generation, message); };
      log_graph(plan_, hello_.rank);
      heartbeat_->enter(generation, env.progress);  // large models take long to get their initial values
      auto worker = Worker::create(plan_, hello_.rank, std::move(env));
      if (!worker.ok() && control_.has_newer()) {  // what it could not do it need not do any more
        while (!std::holds_alternative<Abort>(control_.next())) {}
        heartbeat_->enter(control_.generation(), nullptr);
        leave(*transport);
        return {};
      }
      if (!worker.ok()) return fail(worker.status());
      (*worker)->start();
      const bool stops = follow(**worker, home);
      stopped = resident();
      if (!stops) leave(*transport);
      (*worker)->stop();
      system.await_all_actors_done();
      if (!stops) return {};
    }
    send_spans(*trace_, generation, control_);
    const auto stats = transport->stats();
    stopped.peak_bytes = resident().peak_bytes;
    const std::int64_t own_bytes = kept_bytes_ + (guards_ ? static_cast<std::int64_t>(guards_->size()) : 0);
    stopped.shared_bytes -= std::min(stopped.shared_bytes, own_bytes);
    stopped.sent_bytes = stats.sent_bytes;
    stopped.received_bytes = stats.received_bytes;
    if (injector_) stopped.missed = injector_->missed();
    control_.send(generation, stopped);
    return exit_ok;
  }

  /// What an aborted transport leaves behind (some MB, and descriptors, of each connection one) stays until the process
  /// ends. Where much has gathered, or a small /dev/shm (64 MiB in a container) has no room for the machine's places
  /// once more, the process ends here, and its place gets another one.
  void leave(comm::Transport& transport) {
    const std::int64_t each = 10 + plan_.workers();
    const std::int64_t aborted_max = std::min<std::int64_t>(4, descriptors_max() / 2 / each);
    const bool full = !comm::UcxTransport::has_room_for(hello_.neighbours, hello_.tls);
    if (++aborted_ > aborted_max || full) ::_exit(exit_worn);
    transport.abort();
  }

  /// Hands the session's messages on; returns at Stop, true, or at Abort, false.
  bool follow(Worker& worker, HomeMemory& home) {
    for (;;) {
      auto message = control_.next();
      if (std::holds_alternative<Stop>(message)) return true;
      if (std::holds_alternative<Abort>(message)) {
        heartbeat_->enter(control_.generation(), nullptr);  // the process lives while it leaves
        return false;
      }
      log_order(plan_, message);
      if (const auto* begin = std::get_if<BeginRun>(&message)) heartbeat_->begin(begin->step), home.close();
      if (const auto* commit = std::get_if<CommitStep>(&message)) {
        heartbeat_->committed(commit->step + 1);
        if (injector_) injector_->pass("commit");
      }
      // The window's acts are over when the step after it commits: sent here, a job that fails later has a trace.
      if (const auto* commit = std::get_if<CommitStep>(&message);
          commit && commit->step - hello_.trace.first >= hello_.trace.steps)
        send_spans(*trace_, control_.generation(), control_);
      worker.handle(std::move(message));
    }
  }

  Control& control_;
  int memory_fd_;
  const Accelerator* accelerator_;  // null: the program has registered none
  const kernels::OpSet ops_;
  const actors::UserActorSet& user_actors_;
  Plan plan_;
  Hello hello_;
  SteadyClock clock_;
  FileStorage storage_;
  std::optional<TraceRecorder> trace_;
  std::optional<Injector> injector_;
  std::int64_t aborted_ = 0;            // transports
  std::unique_ptr<Buffer> memory_;      // that the place keeps: the pool, or copies; null: each worker has its own
  std::int64_t kept_bytes_ = 0;         // of it
  std::unique_ptr<Buffer> guards_;      // behind it; null: the place guards nothing
  std::optional<Heartbeat> heartbeat_;  // last: ends first
};

}  // namespace

int worker_process(int fd, int memory_fd, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                   const Accelerator* accelerator) {
  Control control(fd);
  return PlaceProcess(control, memory_fd, ops, user_actors, accelerator).run();
}

}  // namespace troupe::runtime
