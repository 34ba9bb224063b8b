#include "runtime/launch/job.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <span>

#include "checkpoint/catalog.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "devices/cpu/cpu_device.h"
#include "devices/files/file_storage.h"
#include "devices/host_memory.h"
#include "devices/process/descriptors.h"
#include "devices/process/end_signals.h"
#include "runtime/agents/agent_life.h"
#include "runtime/agents/agent_port.h"
#include "runtime/agents/agent_process.h"
#include "runtime/agents/launcher.h"
#include "runtime/elastic/coordinator.h"
#include "runtime/launch/fresh_number.h"
#include "runtime/launch/job_log.h"
#include "runtime/launch/job_socket.h"
#include "runtime/launch/running_job.h"
#include "runtime/launch/shape_plans.h"
#include "runtime/place/local_plan.h"
#include "runtime/store/leadership.h"

namespace troupe::runtime {

namespace {

/// Bytes that places of another plan may need together, while those of `before` run: what the machine has available,
/// and what those give back, which is all but the state: that lies twice for a while.
std::int64_t room_beside(const Plan& before) {
  auto bytes = static_cast<std::int64_t>(available_host_bytes());
  for (Rank r = 0; r < before.workers(); ++r)
    if (const auto local = local_plan(before, r); local.ok())
      bytes += local->pool_bytes + local->arena_bytes + local->copies_bytes - local->kept_bytes();
  return bytes;
}

/// The parent's side of a job: polls links, logs, deaths and signals, and brings them to the coordinator, which
/// decides.
class Job {
 public:
  Job(const Plan& plan, JobOptions options, int killed_ms)
      : plan_(plan), options_(std::move(options)), killed_ms_(killed_ms),
        disk_(options_.checkpoint.dir.empty() ? nullptr : device_.create_stream("checkpoints", 1)),
        checkpoints_(make_checkpoints()), shapes_(make_shapes()),
        planning_(shapes_ ? device_.create_stream("shapes", 1) : nullptr),
        job_(plan_, options_, job_options(), {checkpoints_.get(), shapes_.get(), planning_.get()}, clock_,
             [this](PlaceId place, const std::string& line) { log(place, line); }) {}

  JobResult run() {
    keep_log(job_log_bytes);
    on_signal();  // one that has come while the caller held signals back
    if (!coordinator_.over()) begin();
    coordinator_.started(clock_.now_ns());
    while (!coordinator_.over()) turn();
    if (Leadership* const lead = options_.machines.lead.get()) {
      lead->turns_within(0);
      if (coordinator_.has_begun()) lead->went_on();
    }
    // A checkpoint of which all workers have said that it is written is committed, however the job ends.
    coordinator_.finish_checkpoints();
    // A worker whose link closes ends at once, or as soon as its transport is open: killed before, it would leave
    // shared memory behind. A worker that hangs is killed.
    JobResult result = coordinator_.take_result();
    if (result.late_messages > 0)
      log_debug(fmt::format("{} control messages of other generations were dropped", result.late_messages));
    const int grace_ms = result.status.ok() || coordinator_.pause().begun() ? 2000 : 500;
    if (begins_again(result)) places_.let_go(has_started_ ? Status() : result.status);
    if (const Status ended = places_.finish(grace_ms, killed_ms_); !ended.ok()) left_behind(result, ended);
    places_.bring_to(coordinator_, clock_.now_ns());  // what their logs still had
    // The caller may begin again with another checkpoint: a signal that came meanwhile ends that job.
    if (result.status.code() == Code::damaged) signals_.pass_on();
    if (shapes_) shapes_->stop();
    return result;
  }

 private:
  CoordinatorOptions job_options() {
    CoordinatorOptions c = coordinator_options(options_, plan_);
    c.on_settled = [this] { prepare_shapes(); };
    if (options_.machines.lead) c.claim = [this](JobGeneration next) { options_.machines.lead->claim(next); };
    if (options_.paced == 0 && options_.machines.count == 0)
      c.places_at_once = std::ssize(usable_cores()) / std::max(1, options_.threads);
    if (shapes_)
      c.replan = [this](const Plan& before, std::int64_t places) {
        return shapes_->choose(before, places, *planning_);
      };
    return c;
  }

  std::unique_ptr<ShapePlans> make_shapes() {
    if (!options_.replan) return nullptr;
    return std::make_unique<ShapePlans>(
        options_.replan, plan_.keeps_copies(),
        [most = options_.memory_bytes_max, machines = options_.machines.count](const Plan& before) {
          if (most == 0 && machines > 0) return std::numeric_limits<std::int64_t>::max();  // it is of other machines
          return most > 0 ? most : room_beside(before);
        });
  }

  void begin() {
    if (Status s = find_machines(); !s.ok()) coordinator_.end(s, code_of(s));
    else if (coordinator_.over()) return;  // by a signal
    else if (s = leads(); s.code() == Code::superseded) coordinator_.superseded(s);
    else if (!s.ok()) coordinator_.end(s, code_of(s));  // before it claims the folder of checkpoints
    else if (s = checkpoints_ ? checkpoints_->begin(fresh_number()) : Status{}; !s.ok())
      coordinator_.end(s, exit_checkpoint);
    else if (s = start(); !s.ok()) coordinator_.end(s, code_of(s));
  }

  static int code_of(const Status& s) {
    const bool refused = s.code() == Code::invalid || s.code() == Code::denied;
    return refused ? exit_usage : s.code() == Code::superseded ? exit_superseded : exit_worker;
  }

  /// Whether another process has use for the job's machines, or this one with another checkpoint.
  bool begins_again(const JobResult& result) const {
    if (result.exit_code == exit_superseded || result.status.code() == Code::damaged) return true;
    if (options_.kept) return !coordinator_.has_begun();
    return !has_started_ && !result.status.ok() && result.exit_code != exit_interrupted;
  }

  /// Waits for the agents of other machines, where the job has any.
  Status find_machines() {
    const JobMachines& o = options_.machines;
    if (o.count == 0) return places_.use_this_machine(), Status{};
    auto gathered = options_.gathered;
    if (!gathered) {
      TROUPE_ASSIGN(gathered, open_and_gather(o, signals_.fd()));
    }
    if (!gathered) return on_signal(), Status{};
    port_ = std::move(gathered->port);
    return job_.begin_on(std::move(gathered->joined), gathered->program);
  }

  std::unique_ptr<CheckpointTracker> make_checkpoints() {
    if (!disk_) return nullptr;
    return std::make_unique<CheckpointTracker>(plan_, options_.checkpoint, options_.session.first_step,
                                               options_.session.steps, storage_, *disk_, clock_);
  }

  /// Makes the result name workers that SIGKILL has not ended, beside any other error that the job has ended with.
  static void left_behind(JobResult& result, const Status& left) {
    const Status& s = result.status;
    if (s.ok()) result.exit_code = exit_worker;
    result.status = s.ok() ? left : Status(s.code(), left.message() + "; " + s.message());
  }

  Status start() {
    std::optional<JobGeneration> claimed;
    CheckpointTarget save;
    if (checkpoints_) {
      if (const auto before = newest_in_store(); checkpoints_->claim().generation <= before)
        TROUPE_TRY(checkpoints_->next_generation(before).status());
      claimed = {0, checkpoints_->claim().generation};
      save = {options_.checkpoint.dir, checkpoints_->claim().job};
    }
    const JobGeneration first = job_.first_generation(claimed, fresh_number(), newest_in_store());
    TROUPE_TRY(claim_first(first));
    if (coordinator_.over()) return {};  // by a signal
    TROUPE_TRY(job_.start(first, save));
    has_started_ = true;
    if (!options_.replaces && shapes_for(plan_, plan_.workers() - 1).empty())
      log_warn(
          fmt::format("the loss of any worker{} will end the job: {} has nothing to give up, and no other shape runs "
                      "on {} workers",
                      options_.spares > 0 ? " for which no spare is left" : "", shape_of(plan_), plan_.workers() - 1));
    prepare_shapes();
    if (options_.socket.empty()) return {};
    auto socket = JobSocket::open(options_.socket);
    if (socket.ok()) socket_ = *std::move(socket);
    else log_warn(socket.status().message() + ": other processes cannot ask this job");
    return {};
  }

  Status leads() const { return options_.machines.lead ? options_.machines.lead->make_sure() : Status(); }
  std::uint32_t newest_in_store() const {
    return options_.machines.lead ? options_.machines.lead->newest_generation() : 0;
  }

  /// After so long without a turn the agents have left this process: nothing is lost when another one leads then.
  std::int64_t patience_ms() const {
    return AgentLife::patience_ns(places_.machine_budget_ms() * std::int64_t{1'000'000}) / 1'000'000;
  }

  /// Waits until the store has given the generation with which the job begins (CR-9 one leader), for as long as the
  /// coordinator waits for a later one. Agents that have been taken hear of the job meanwhile.
  Status claim_first(JobGeneration first) {
    Leadership* const lead = options_.machines.lead.get();
    if (!lead) return {};
    lead->claim(first);
    const std::int64_t most_s = std::max(options_.stall_s, options_.machines.wait_s);
    const std::int64_t until_ns = clock_.now_ns() + most_s * 1'000'000'000;
    while (lead->claimed() != first && !coordinator_.over()) {
      TROUPE_TRY(lead->lost());
      if (clock_.now_ns() >= until_ns)
        return Status(
            Code::unavailable,
            fmt::format("the store has not answered for {} s, without which no generation is entered", most_s));
      PollSet set;
      bool signal = false;
      places_.watch(set);
      if (port_) port_->watch(set);
      set.add(lead->fd(), POLLIN, [](short) {});
      set.add(signals_.fd(), POLLIN, [&signal](short happened) { signal = happened != 0; });
      const bool polled = set.wait(static_cast<int>(turn_most_ms()));
      if (polled) set.serve();
      if (polled) places_.turn(clock_.now_ns());
      if (port_) port_->turn(clock_.now_ns());
      if (signal) on_signal();
    }
    return job_.check_room();
  }

  /// What has become of the lead since the last call.
  void look_at_lead() {
    Leadership* const lead = options_.machines.lead.get();
    if (!lead || !lead->is_taken() || coordinator_.over()) return;
    lead->turns_within(patience_ms());
    if (coordinator_.has_begun()) lead->went_on();
    if (coordinator_.committed() > options_.session.first_step) lead->made_step();
    coordinator_.claimed(lead->claimed());
    if (const Status s = lead->lost(); !s.ok()) coordinator_.superseded(s);
  }

  /// For the loss of one place, and of two, where no spare takes their part.
  void prepare_shapes() {
    if (!shapes_ || options_.replaces) return;
    const auto available = std::ssize(coordinator_.available());
    for (const std::int64_t left : {available - 1, available - 2})
      if (left > 0 && left < coordinator_.plan().workers())
        shapes_->prepare(coordinator_.plan(), left, *planning_, left == available - 1);
  }

  // ---- events ---------------------------------------------------------------------------------------

  static constexpr std::int64_t poll_ms = 200;
  /// For how long a turn waits at most.
  std::int64_t turn_most_ms() const {
    return port_ ? std::min<std::int64_t>(poll_ms, options_.detect_budget_ms / 8) : poll_ms;
  }

  void turn() {
    PollSet set;
    places_.watch(set);
    if (port_) port_->watch(set);
    bool signal = false;
    set.add(signals_.fd(), POLLIN, [&signal](short happened) { signal = happened != 0; });
    if (options_.machines.lead) set.add(options_.machines.lead->fd(), POLLIN, [](short) {});  // look_at_lead()
    if (socket_)
      for (const int fd : socket_->fds()) set.add(fd, POLLIN, [](short) {});  // serve_requests() looks at all
    const std::int64_t wait_ms = std::clamp((coordinator_.wakes_ns() - clock_.now_ns()) / 1'000'000 + 1,
                                            std::int64_t{0}, turn_most_ms());
    const bool polled = set.wait(static_cast<int>(wait_ms));
    // While this process was stopped (Ctrl-Z, a suspended machine), or busy with what an application does when it is
    // told something, it read no link.
    const std::int64_t polled_ns = clock_.now_ns();
    if (polled_ns - std::exchange(polled_ns_, polled_ns) > 5 * poll_ms * 1'000'000)
      coordinator_.resumed_after_stop(polled_ns), places_.resumed_after_stop(polled_ns);
    if (polled) set.serve();
    if (polled) places_.turn(polled_ns);
    if (port_) {
      port_->turn(clock_.now_ns());
      job_.bring();  // a machine that joins may have been lost a moment ago
      for (JoinedAgent& one : port_->take_joined()) job_.take_joined(one);
    }
    job_.bring();
    look_at_lead();
    if (signal && !coordinator_.over()) on_signal();
    check_output();
    if (!coordinator_.over()) serve_requests();
    if (const auto answer = job_.decide(polled_ns)) reply(*answer);
  }

  // ---- requests of other processes ------------------------------------------------------------------

  void serve_requests() {
    const auto answer = [this](const std::string& request) -> std::optional<std::string> {
      if (request == "ps") return state_text();
      if (request.rfind(logs_request, 0) == 0) return answer_logs(request.substr(logs_request.size()));
      if (request.rfind(scale_request, 0) == 0) return job_.changes().ask(request.substr(std::strlen(scale_request)));
      return "troupe: the job does not know the request '" + request + "'";
    };
    if (socket_) socket_->serve(answer);
    if (port_) port_->serve_requests(answer);
  }

  void reply(const std::string& text) {
    if (socket_) socket_->reply(text);
    if (port_) port_->reply(text);
  }

  std::string state_text() {
    JobState state = coordinator_.state();
    for (JobState::Place& place : state.places) {
      place.pid = places_.pid(PlaceId{place.place});
      place.machine = places_.machine(PlaceId{place.place});
    }
    state.idle_machines = places_.idle_machines();
    return to_text(state, clock_.now_ns());
  }

  /// Ends the job where what it prints has no reader, or cannot be written.
  void check_output() {
    if (coordinator_.over()) return;
    if (!coordinator_.pause().asked() && coordinator_.committed() < options_.session.steps && options_.reader_gone &&
        options_.reader_gone()) {
      on_signal();  // Ctrl-C ends a reader in the same pipe as well: it is the reason, then
      if (!coordinator_.over() && !coordinator_.pause().asked())
        coordinator_.interrupt(reader_gone_error().message(), exit_reader_gone, clock_.now_ns());
    }
    if (options_.give_up)
      if (Status s = options_.give_up(); !s.ok()) coordinator_.end(std::move(s), exit_output);
  }

  void log(PlaceId place, const std::string& line) {
    const auto number = static_cast<Rank>(place);
    if (options_.on_log) options_.on_log(number, line);
    else pass_log_line(fmt::format("worker {}", number), line);
  }

  /// The first signal lets a job that saves checkpoints end with one of the step that is under way; a later one but
  /// SIGHUP, and the first of any other job, ends it at once.
  void on_signal() {
    const auto signal = signals_.take();
    if (!signal || coordinator_.pause().covers(*signal == SIGHUP, clock_.now_ns())) return;
    coordinator_.interrupt(std::string("interrupted by ") + ::strsignal(*signal), exit_interrupted, clock_.now_ns());
  }

  EndSignals signals_;  // from before the first worker starts
  const Plan& plan_;
  const JobOptions options_;
  const int killed_ms_;  // see run_job
  SteadyClock clock_;
  CpuDevice device_{clock_, {}};
  FileStorage storage_;
  std::unique_ptr<Stream> disk_;
  std::unique_ptr<CheckpointTracker> checkpoints_;  // destroyed before the stream
  std::unique_ptr<ShapePlans> shapes_;              // null: the job keeps its shape
  std::unique_ptr<Stream> planning_;                // destroyed before what it works for
  std::unique_ptr<JobSocket> socket_;
  std::unique_ptr<AgentPort> port_;  // null: the job has this machine only
  RunningJob job_;
  JobPlaces& places_ = job_.places();
  Coordinator& coordinator_ = job_.coordinator();
  bool has_started_ = false;                  // its places
  std::int64_t polled_ns_ = clock_.now_ns();  // when this process last looked
};

}  // namespace

JobResult run_job(const Plan& plan, JobOptions o, int killed_ms) { return Job(plan, std::move(o), killed_ms).run(); }

}  // namespace troupe::runtime
