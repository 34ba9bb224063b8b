#include "runtime/launch/job.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <set>
#include <span>

#include "checkpoint/catalog.h"
#include "devices/base/check.h"
#include "devices/base/log.h"
#include "devices/cpu/cpu_device.h"
#include "devices/files/file_storage.h"
#include "devices/host_memory.h"
#include "devices/process/descriptors.h"
#include "devices/process/end_signals.h"
#include "runtime/elastic/coordinator.h"
#include "runtime/launch/fresh_number.h"
#include "runtime/launch/hello.h"
#include "runtime/launch/job_socket.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/shape_plans.h"
#include "runtime/plan/plan_io.h"
#include "runtime/worker/kept_state.h"

namespace troupe::runtime {

namespace {

ProcessEnd end_of(std::optional<int> status) {
  if (!status) return ProcessEnd::suspect;
  constexpr auto errors = std::to_array<int>({SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT});
  if (WIFSIGNALED(*status) && std::find(errors.begin(), errors.end(), WTERMSIG(*status)) != errors.end())
    return ProcessEnd::suspect;
  if (!WIFEXITED(*status)) return ProcessEnd::ordinary;
  constexpr int cannot_execute = 126, not_found = 127;  // of a prefix
  switch (WEXITSTATUS(*status)) {
    case exit_worn: return ProcessEnd::worn;
    case exit_worker:
    case cannot_execute:
    case not_found: return ProcessEnd::refused;
    default: return ProcessEnd::ordinary;
  }
}

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
class Job final : private CoordinatorSink {
 public:
  Job(const Plan& plan, JobOptions options, int killed_ms)
      : plan_(plan), options_(std::move(options)), killed_ms_(killed_ms),
        disk_(options_.checkpoint.dir.empty() ? nullptr : device_.create_stream("checkpoints", 1)),
        checkpoints_(make_checkpoints()), shapes_(make_shapes()),
        planning_(shapes_ ? device_.create_stream("shapes", 1) : nullptr),
        coordinator_(plan_, coordinator_options(), checkpoints_.get(), *this) {}

  JobResult run() {
    on_signal();  // one that has come while the caller held signals back
    if (!coordinator_.over()) begin();
    coordinator_.started(clock_.now_ns());
    while (!coordinator_.over()) turn();
    // A checkpoint of which all workers have said that it is written is committed, however the job ends.
    coordinator_.finish_checkpoints();
    // A worker whose link closes ends at once, or as soon as its transport is open: killed before, it would leave
    // shared memory behind. A worker that hangs is killed.
    JobResult result = coordinator_.take_result();
    if (result.late_messages > 0)
      log_debug(fmt::format("{} control messages of other generations were dropped", result.late_messages));
    const auto line = [this](Rank rank, const std::string& text) { log(rank, text); };
    const int grace_ms = result.status.ok() || coordinator_.pause().begun() ? 2000 : 500;
    if (const Status ended = launcher_.finish(grace_ms, line, killed_ms_); !ended.ok()) left_behind(result, ended);
    // The caller may begin again with another checkpoint: a signal that came meanwhile ends that job.
    if (result.status.code() == Code::damaged) signals_.pass_on();
    if (shapes_) shapes_->stop();
    return result;
  }

 private:
  CoordinatorOptions coordinator_options() {
    const JobOptions& o = options_;
    CoordinatorOptions c;
    c.session = o.session;
    c.stall_s = o.stall_s;
    c.on_ready = o.on_ready;
    c.on_pause = o.on_pause;
    c.recovers = o.recovers;
    c.spares = o.spares;
    c.detect_ns = std::int64_t{o.detect_budget_ms} * 1'000'000;
    c.grace_ns = std::int64_t{o.grace_s} * 1'000'000'000;
    c.restore = o.checkpoint.restore;
    c.inputs_unchanged = o.inputs_unchanged;
    c.on_incident = o.on_incident;
    c.on_straggler = o.on_straggler;
    if (o.paced == 0) c.places_at_once = std::ssize(usable_cores()) / std::max(1, o.threads);
    if (shapes_ && !o.replaces)
      c.replan = [this](const Plan& before, std::int64_t places) { return shapes_->choose(before, places); };
    return c;
  }

  std::unique_ptr<ShapePlans> make_shapes() {
    if (!options_.replan) return nullptr;
    return std::make_unique<ShapePlans>(
        options_.replan, plan_.keeps_copies(),
        [most = options_.memory_bytes_max](const Plan& before) { return most > 0 ? most : room_beside(before); });
  }

  void begin() {
    if (Status s = checkpoints_ ? checkpoints_->begin(fresh_number()) : Status{}; !s.ok())
      coordinator_.end(s, exit_checkpoint);
    else if (s = start(); !s.ok()) coordinator_.end(s, exit_worker);
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
    coordinator_.enter({fresh_number(), checkpoints_ ? checkpoints_->claim().generation : 1});
    for (Rank r = 0; r < plan_.workers(); ++r) TROUPE_TRY(start_process(r));
    const CheckpointTarget save = checkpoints_ ? CheckpointTarget{options_.checkpoint.dir, checkpoints_->claim().job}
                                               : CheckpointTarget{};
    hellos_ = hellos(options_, plan_.workers(), save);
    for (int i = 0; i < options_.spares; ++i) TROUPE_TRY(start_another());
    tell_plan(plan_, coordinator_.places());
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

  Status start_process(Rank place) {
    TROUPE_TRY(launcher_.start(prefix(place), options_.recovers));
    log_debug(fmt::format("{} is process {}", worker(place), launcher_.workers()[place].pid));
    return {};
  }
  /// A place that has no rank so far.
  Status start_another() {
    const auto place = static_cast<Rank>(launcher_.workers().size());
    Hello hello = hellos_.front();
    hello.place = place;
    hello.cores.clear();
    hello.net_device.clear();
    hello.injections.clear();
    hellos_.push_back(hello);  // first: a process may have been started, and not be watched
    const Status started = start_process(place);
    if (static_cast<Rank>(launcher_.workers().size()) > place) coordinator_.add_place(PlaceId{place});
    else hellos_.pop_back();
    return started;
  }

  std::vector<std::string> prefix(Rank r) const {
    const auto i = static_cast<std::size_t>(r);
    return i < options_.prefixes.size() ? options_.prefixes[i] : std::vector<std::string>{};
  }

  /// What a process hears first, and when its job goes on with another plan.
  void tell_plan(const Plan& plan, std::span<const PlaceId> places) {
    send(places, coordinator_.generation(), PlanBytes{write_plan(plan)});
    for (const PlaceId& place : places)
      send(std::span(&place, 1), coordinator_.generation(), hellos_[static_cast<std::size_t>(place)]);
  }

  // ---- CoordinatorSink ------------------------------------------------------------------------------

  void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) override {
    // The same bytes to each worker: a plan may be large, and a job may have many.
    const auto bytes = std::make_shared<const std::vector<std::byte>>(encode(message));
    for (const PlaceId place : to) post(static_cast<Rank>(place), of, bytes);
  }
  Status with_last_log_lines(PlaceId of, const Status& status) override {
    auto& w = launcher_.workers()[static_cast<Rank>(of)];
    launcher_.read_log(w, [&](const std::string& line) { log(static_cast<Rank>(of), line); });
    return w.with_last_lines(status);
  }
  Status restart(PlaceId place, bool afresh) override {
    const Rank r = static_cast<Rank>(place);
    broken_.erase(r);
    told_down_.erase(r);
    auto& w = launcher_.workers()[r];
    TROUPE_TRY(launcher_.restart(w, prefix(r), afresh, [&](const std::string& line) { log(r, line); }));
    log_debug(fmt::format("{} is process {} now", worker(r), w.pid));
    Hello& hello = hellos_[static_cast<std::size_t>(r)];
    hello.injections.clear();  // they have hit the place's first process
    hello.memory.clear();      // it has been given it
    tell_plan(coordinator_.plan(), std::span(&place, 1));
    return {};
  }
  Status reshape(const Plan& plan, std::span<const PlaceId> places) override {
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      WorkerProcess& w = launcher_.workers()[static_cast<Rank>(places[rank])];
      TROUPE_TRY(Launcher::renew_memory(w));
      Hello& hello = hellos_[static_cast<std::size_t>(places[rank])];
      hello.rank = static_cast<Rank>(rank);
      hello.memory = kept_memory_name(w.memory_fd);
      hello.injections.clear();  // the process has them
    }
    tell_plan(plan, places);
    return {};
  }
  std::optional<std::vector<std::int64_t>> held(PlaceId place, const Plan& plan, Rank rank) override {
    const auto local = local_plan(plan, rank);
    ASSERT(local.ok(), local.status().message());
    const auto area = map_to_read(memory_of(place));
    if (area.ok() && static_cast<std::int64_t>((*area)->size()) >= local->kept_bytes())
      return whole_versions(plan, *local, (*area)->data());
    log_debug(fmt::format("{}: {}", worker(static_cast<Rank>(place)), area.status().message()));
    return std::vector<std::int64_t>();
  }
  std::string memory_of(PlaceId place) override {
    const WorkerProcess& w = launcher_.workers()[static_cast<Rank>(place)];
    return kept_memory_name(w.home_fd >= 0 ? w.home_fd : w.memory_fd);
  }
  void dismiss(PlaceId place) override {
    WorkerProcess& w = launcher_.workers()[static_cast<Rank>(place)];
    log_debug(worker(static_cast<Rank>(place)) + " has no part in the job any more, and ends");
    w.link.reset();  // its process ends
    broken_.insert(static_cast<Rank>(place));
  }
  void settled() override {
    auto& workers = launcher_.workers();
    for (Rank r = 0; r < static_cast<Rank>(workers.size()); ++r) {
      const auto& places = coordinator_.places();
      const bool used = std::find(places.begin(), places.end(), PlaceId{r}) != places.end();
      Launcher::forget_memory(workers[r], used);
    }
    prepare_shapes();
  }
  /// For the loss of one place, and of two, where no spare takes their part.
  void prepare_shapes() {
    if (!shapes_ || options_.replaces) return;
    const auto available = std::ssize(coordinator_.available());
    for (const std::int64_t left : {available - 1, available - 2})
      if (left > 0 && left < coordinator_.plan().workers())
        shapes_->prepare(coordinator_.plan(), left, *planning_, left == available - 1);
  }
  void kill(PlaceId place) override { launcher_.workers()[static_cast<Rank>(place)].signal(SIGKILL); }
  void post(Rank to, JobGeneration of, SharedBytes message) {
    auto& w = launcher_.workers()[to];
    // turn() notices a broken link where it reads; the exit of the worker's process says why.
    const Status s = w.link ? w.link->post(of, std::move(message)) : Status{};
    if (!s.ok() && s.code() != Code::unavailable) coordinator_.end(s.in(worker(to)), exit_worker);
  }

  // ---- events ---------------------------------------------------------------------------------------

  void turn() {
    auto& workers = launcher_.workers();
    std::vector<pollfd> fds;
    std::vector<std::pair<int, Rank>> what;  // 0 link, 1 log, 2 death, 3 signal, 4 socket
    auto add = [&](int fd, int kind, Rank r, short events = POLLIN) {
      if (fd < 0) return;
      fds.push_back({fd, events, 0});
      what.push_back({kind, r});
    };
    for (Rank r = 0; r < static_cast<Rank>(workers.size()); ++r) {
      auto& w = workers[r];
      // A worker that does not read must not delay the other workers, nor signals.
      const short more = w.link && w.link->unsent() ? POLLOUT : 0;
      if (w.link && !broken_.count(r)) add(w.link->fd(), 0, r, static_cast<short>(POLLIN | more));
      add(w.log_fd, 1, r);
      if (w.held) launcher_.reap(w);  // once a turn: its pidfd stays readable
      else if (!w.exited) add(w.pidfd, 2, r);
    }
    add(signals_.fd(), 3, 0);
    if (socket_)
      for (const int fd : socket_->fds()) add(fd, 4, 0);
    constexpr std::int64_t poll_ms = 200;
    const std::int64_t before_ns = clock_.now_ns();
    const std::int64_t wait_ms = std::clamp((coordinator_.wakes_ns() - before_ns) / 1'000'000 + 1, std::int64_t{0},
                                            poll_ms);
    const bool polled = ::poll(fds.data(), fds.size(), static_cast<int>(wait_ms)) >= 0;
    // While this process was stopped (Ctrl-Z, a suspended machine), or busy with what an application does when it is
    // told something, it read no link.
    const std::int64_t polled_ns = clock_.now_ns();
    if (polled_ns - std::exchange(polled_ns_, polled_ns) > 5 * poll_ms * 1'000'000)
      coordinator_.resumed_after_stop(polled_ns);
    for (std::size_t i = 0; i < fds.size() && !coordinator_.over(); ++i) {
      const auto [kind, r] = what[i];
      if (kind == 0 && !workers[r].link) continue;  // dismissed in this turn
      if (kind == 0 && (fds[i].revents & POLLOUT) != 0) (void)workers[r].link->flush().ok();
      if (kind == 0 && (fds[i].revents & ~POLLOUT) != 0) read_link(r);
      else if (kind == 0 && polled && workers[r].exited) broken_.insert(r);  // since before; its child holds the link
      if (fds[i].revents == 0) continue;
      if (kind == 1) launcher_.read_log(workers[r], [&, rank = r](const std::string& line) { log(rank, line); });
      else if (kind == 2) workers[r].held = !launcher_.reap(workers[r]);
      else if (kind == 3) on_signal();
    }
    for (Rank r = 0; r < static_cast<Rank>(workers.size()); ++r)
      if (workers[r].exited && broken_.count(r) && told_down_.insert(r).second) {  // all its messages are read
        const Status how(Code::unavailable, fmt::format("{} (pid {}) {}", worker(r), workers[r].pid,
                                                        describe_exit(workers[r].wait_status)));
        coordinator_.down(PlaceId{r}, how, end_of(workers[r].wait_status), clock_.now_ns());
      }
    check_output();
    if (socket_ && !coordinator_.over()) serve_socket();
    coordinator_.turn(polled_ns);  // until then links have been read
  }

  // ---- requests of other processes ------------------------------------------------------------------

  void serve_socket() {
    socket_->serve([this](const std::string& request) -> std::optional<std::string> {
      if (request == "ps") return state_text();
      if (request.rfind(scale_request, 0) == 0) return scale(request.substr(std::strlen(scale_request)));
      return "troupe: the job does not know the request '" + request + "'";
    });
    using namespace std::chrono_literals;
    if (!scaled_ || scaled_->wait_for(0s) != std::future_status::ready) return;
    const auto chosen = std::exchange(scaled_, std::nullopt)->get();
    if (chosen.ok() && chosen->shape == shape_of(coordinator_.plan()) && coordinator_.may_change().ok())
      return socket_->reply("the job goes on as " + chosen->shape + ", as it does already");
    const Status s = chosen.ok() ? go_on_as(*chosen) : chosen.status();
    socket_->reply(
        s.ok() ? fmt::format("the job goes on as {} (predicted: {:.3g} ms a step)", chosen->shape, chosen->step_s * 1e3)
               : "troupe: " + s.message());
  }

  /// Begins to go on in another shape; what is wrong, or nullopt: the answer comes later.
  std::optional<std::string> scale(const std::string& text) {
    if (!options_.recovers || !shapes_) return "troupe: the job keeps its shape: it does not recover (--recovery)";
    if (!options_.read_shape) return "troupe: the job keeps its shape: it reads no other (JobOptions::read_shape)";
    if (scaled_) return "troupe: the job is about to change its shape, for another request";
    const auto dp = options_.read_shape(text);
    if (!dp.ok()) return "troupe: " + dp.status().message();
    if (options_.inputs_unchanged)
      if (const Status s = options_.inputs_unchanged(); !s.ok()) return "troupe: " + s.message();
    scaled_ = shapes_->compile(coordinator_.plan(), *dp, *planning_);
    return std::nullopt;
  }
  Status go_on_as(const ChosenPlan& chosen) {
    TROUPE_TRY(coordinator_.may_change());
    const std::int64_t more = chosen.plan->workers() - std::ssize(coordinator_.available());
    const std::int64_t places = std::ssize(coordinator_.available()) + std::max<std::int64_t>(0, more);
    // A control link, a log, a pidfd, and for a while two memories of each.
    if (const std::int64_t need = 32 + 5 * places; need > descriptors_max())
      return Status(Code::exhausted,
                    fmt::format("{} workers need {} file descriptors, and the job's process may have {}: raise the "
                                "limit (ulimit -n) before it begins",
                                places, need, descriptors_max()));
    const auto before = launcher_.workers().size();
    const Status s = change_with_more(chosen);
    for (std::size_t place = before; !s.ok() && place < launcher_.workers().size(); ++place)
      dismiss(PlaceId{static_cast<Rank>(place)});
    return s;
  }
  Status change_with_more(const ChosenPlan& chosen) {
    while (std::ssize(coordinator_.available()) < chosen.plan->workers()) TROUPE_TRY(start_another());
    return coordinator_.change(chosen, "asked to go on as " + chosen.shape, clock_.now_ns());
  }

  std::string state_text() {
    JobState state = coordinator_.state();
    for (JobState::Place& place : state.places) {
      const WorkerProcess& w = launcher_.workers()[static_cast<Rank>(place.place)];
      place.pid = w.exited ? -1 : w.pid;
    }
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

  void log(Rank rank, const std::string& line) {
    if (options_.on_log) options_.on_log(rank, line);
    else pass_log_line(worker(rank), line);
  }
  static std::string worker(Rank rank) { return fmt::format("worker {}", rank); }

  /// The first signal lets a job that saves checkpoints end with one of the step that is under way; a later one but
  /// SIGHUP, and the first of any other job, ends it at once.
  void on_signal() {
    const auto signal = signals_.take();
    if (!signal || coordinator_.pause().covers(*signal == SIGHUP, clock_.now_ns())) return;
    coordinator_.interrupt(std::string("interrupted by ") + ::strsignal(*signal), exit_interrupted, clock_.now_ns());
  }

  void read_link(Rank r) {
    std::deque<ControlFrame> frames;
    const Status s = launcher_.workers()[r].link->receive(frames);
    for (const ControlFrame& frame : frames) coordinator_.heard(PlaceId{r}, frame, clock_.now_ns());
    if (coordinator_.over()) return;
    if (s.ok()) return;
    if (s.code() != Code::unavailable) coordinator_.distrust(PlaceId{r}, s.in(worker(r)), clock_.now_ns());
    broken_.insert(r);  // its process is about to end, or has been told to
    log_debug(worker(r) + ": " + s.message());
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
  std::optional<std::shared_future<Expected<ChosenPlan>>> scaled_;  // a shape that was asked for is compiled
  Coordinator coordinator_;
  std::vector<Hello> hellos_;  // by place
  Launcher launcher_;
  std::int64_t polled_ns_ = clock_.now_ns();  // when this process last looked
  std::set<Rank> broken_;                     // links that have ended
  std::set<Rank> told_down_;                  // of these, places whose process has ended
};

}  // namespace

JobResult run_job(const Plan& plan, JobOptions o, int killed_ms) { return Job(plan, std::move(o), killed_ms).run(); }

}  // namespace troupe::runtime
