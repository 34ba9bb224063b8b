// A worker process: gives a Worker its production parts: steady clock, UCX, CPU or paced device, CAF's scheduler. No
// other class knows whether it is simulated (sim_cluster.h has the simulated parts).
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "actors/actor_scheduler.h"
#include "comm/ucx/ucx_transport.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/thread_alarm.h"
#include "devices/cpu/time_slice.h"
#include "devices/files/file_storage.h"
#include "devices/paced/paced_device.h"
#include "runtime/launch/app.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/worker_log.h"
#include "runtime/plan/plan_io.h"
#include "runtime/verify/verify.h"
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

/// The worker's end of the control link. `send` is thread-safe; both calls end the process if the link breaks.
class Control {
 public:
  explicit Control(int fd) : link_(fd) {}
  void send(JobGeneration of, const FromWorker& message) {
    std::lock_guard lock(mutex_);
    if (const Status s = link_.send(of, encode(message)); !s.ok()) end(s);
  }
  /// The next message of this worker's generation (CL-1 one generation). A worker serves one: with a newer one, in
  /// which it has no part, its process ends.
  ToWorker next() {
    for (;;) {
      while (frames_.empty())
        if (const Status s = link_.receive(frames_); !s.ok()) end(s);
      const ControlFrame frame = std::move(frames_.front());
      frames_.pop_front();
      const JobGeneration own = fence_.generation();
      if (!fence_.follows(frame.of)) continue;
      if (own != JobGeneration{} && own != frame.of)
        end(Status(Code::internal, fmt::format("generation {} has begun, and this worker is of generation {}",
                                               frame.of.number, own.number)));
      auto message = decode_to_worker(frame.message);
      if (!message.ok()) end(message.status());
      return *std::move(message);
    }
  }
  /// REQUIRES: next() has returned.
  JobGeneration generation() const { return fence_.generation(); }

 private:
  /// Ends the process; says why unless the parent, who would read it, is gone.
  [[noreturn]] static void end(const Status& why) {
    if (why.code() != Code::unavailable) log_error(why.message());
    ::_exit(exit_worker);
  }

  ControlLink link_;
  std::mutex mutex_;
  std::deque<ControlFrame> frames_;
  GenerationFence fence_;
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

/// Sends Progress once a second, if the worker has made any.
class Heartbeat {
 public:
  Heartbeat(const std::atomic<std::int64_t>& progress, JobGeneration generation, Control& control)
      : thread_([this, &progress, generation, &control] { beat(progress, generation, control); }) {}
  ~Heartbeat() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Heartbeat(const Heartbeat&) = delete;

 private:
  void beat(const std::atomic<std::int64_t>& progress, JobGeneration generation, Control& control) {
    std::int64_t last = 0;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::seconds(1), [this] { return over_; })) {
      const std::int64_t now = progress;
      if (now != last) control.send(generation, Progress{now});
      last = now;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace

int worker_process(int fd, const kernels::OpSet& ops, const actors::UserActorSet& user_actors) {
  Control control(fd);
  const auto first = control.next();
  const auto* plan_bytes = std::get_if<PlanBytes>(&first);
  if (!plan_bytes) return exit_worker;
  const auto next = control.next();
  const auto* hello = std::get_if<Hello>(&next);
  if (!hello) return exit_worker;
  set_log_name(fmt::format("worker {}", hello->rank));
  set_log_level(hello->log_level);
  const JobGeneration generation = control.generation();
  auto fail = [&](const Status& status) {  // the process itself, not one of its actors
    control.send(generation, WorkerFailed{"", status});
    return exit_worker;
  };
  auto plan = read_plan(plan_bytes->bytes);
  if (!plan.ok()) return fail(plan.status());
  if (const Status s = check_structure(*plan); !s.ok()) return fail(s);

  set_up_scheduling(hello->cores, plan->pipeline.ahead);
  SteadyClock clock;
  FileStorage storage;
  TraceRecorder trace(hello->trace);
  comm::UcxOptions ucx;
  ucx.rank = hello->rank;
  ucx.job = generation.job;
  ucx.generation = generation.number;
  ucx.tls = hello->tls;
  ucx.net_devices = hello->net_device;
  auto opened = [&] {
    const DeathWaits until_open;
    return comm::UcxTransport::open(ucx);
  }();
  if (!opened.ok()) return fail(opened.status());
  control.send(generation, WorkerAddress{(*opened)->address()});
  auto after_address = control.next();
  while (std::holds_alternative<ExplainAll>(after_address)) {
    control.send(generation, Explained{"waits for the addresses of its peers\n"});
    after_address = control.next();
  }
  const Connect* connect = std::get_if<Connect>(&after_address);
  if (!connect) return fail(invalid("expected the addresses of the peers, got another message"));
  (*opened)->connect(connect->addresses);
  log_debug("connects to " + counted(std::ssize(connect->addresses) - 1, "peer"));
  std::unique_ptr<comm::Transport> transport = *std::move(opened);
  if (!hello->throttle.empty())
    transport = std::make_unique<comm::ThrottledTransport>(
        std::move(transport), std::make_unique<ThreadAlarm>("alarm", clock), hello->throttle);

  std::unique_ptr<Device> device;
  if (hello->paced > 0) {
    PacedOptions paced;
    paced.scale = hello->paced;
    paced.run_work = hello->run_kernels;
    device = std::make_unique<PacedDevice>(clock, paced);
  } else {
    auto compute_cores = hello->cores;
    if (!compute_cores.empty()) compute_cores.resize(hello->threads);
    device = std::make_unique<CpuDevice>(clock, CpuOptions{compute_cores});
  }
  Stopped stopped;
  {
    ProductionConfig config;
    caf::actor_system system(config);
    WorkerEnv env;
    env.system = &system;
    env.clock = &clock;
    env.device = device.get();
    env.transport = transport.get();
    env.ops = &ops;
    env.user_actors = &user_actors;
    env.trace = hello->trace.steps > 0 ? &trace : nullptr;
    env.threads = hello->threads;
    env.generation = generation;
    env.run_kernels = hello->run_kernels;
    env.storage = &storage;
    env.save = hello->save;
    env.restore = hello->restore;
    env.send = [&, generation](FromWorker message) { control.send(generation, message); };
    log_graph(*plan, hello->rank);
    const auto progress = env.progress;
    const Heartbeat heartbeat(*progress, generation, control);  // large models take long to get their initial values
    auto worker = Worker::create(*plan, hello->rank, std::move(env));
    if (!worker.ok()) return fail(worker.status());
    (*worker)->start();
    for (;;) {
      auto message = control.next();
      if (std::holds_alternative<Stop>(message)) break;
      log_order(*plan, message);
      // The window's acts are over when the step after it commits: sent here, a job that fails later has a trace.
      if (const auto* commit = std::get_if<CommitStep>(&message);
          commit && commit->step - hello->trace.first >= hello->trace.steps)
        send_spans(trace, generation, control);
      (*worker)->handle(std::move(message));
    }
    stopped = resident();
    (*worker)->stop();
    system.await_all_actors_done();
  }
  send_spans(trace, generation, control);
  const auto stats = transport->stats();
  stopped.peak_bytes = resident().peak_bytes;
  stopped.sent_bytes = stats.sent_bytes;
  stopped.received_bytes = stats.received_bytes;
  control.send(generation, stopped);
  return exit_ok;
}

}  // namespace troupe::runtime
