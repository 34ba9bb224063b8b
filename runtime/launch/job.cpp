#include "runtime/launch/job.h"

#include <fmt/format.h>
#include <poll.h>

#include <chrono>
#include <cstring>
#include <set>

#include "checkpoint/catalog.h"
#include "devices/base/log.h"
#include "devices/cpu/cpu_device.h"
#include "devices/files/file_storage.h"
#include "devices/process/end_signals.h"
#include "runtime/launch/fresh_number.h"
#include "runtime/launch/hello.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/pause.h"
#include "runtime/launch/stall_text.h"
#include "runtime/plan/plan_io.h"

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;

/// The parent's side of a job: polls links, logs, deaths and signals; the session decides.
class Job {
 public:
  Job(const Plan& plan, JobOptions options, int killed_ms)
      : plan_(plan), options_(std::move(options)), killed_ms_(killed_ms),
        disk_(options_.checkpoint.dir.empty() ? nullptr : device_.create_stream("checkpoints", 1)),
        checkpoints_(make_checkpoints()),
        session_(plan_, session_options(), checkpoints_.get(), [this](Rank to, const ToWorker& m) { send(to, m); }) {}

  JobResult run() {
    result_.places.resize(plan_.workers());
    on_signal();  // one that has come while the caller held signals back
    if (!over_) begin();
    last_message_ = clock::now();
    while (!over_) turn();
    // A checkpoint of which all workers have said that it is written is committed, however the job ends.
    if (checkpoints_) finish_checkpoints();
    // A worker whose link closes ends at once, or as soon as its transport is open: killed before, it would leave
    // shared memory behind. A worker that hangs is killed.
    const auto line = [this](Rank rank, const std::string& text) { log(rank, text); };
    const Status ended = launcher_.finish(result_.status.ok() || pause_.begun() ? 2000 : 500, line, killed_ms_);
    if (!ended.ok()) left_behind(ended);
    // The caller may begin again with another checkpoint: a signal that came meanwhile ends that job.
    if (result_.status.code() == Code::damaged) signals_.pass_on();
    result_.params_hash = session_.params_hash();
    result_.committed_steps = session_.committed();
    return std::move(result_);
  }

 private:
  SessionOptions session_options() {
    SessionOptions s = options_.session;
    s.on_step = [this, told = std::move(s.on_step)](const StepResult& step) {
      result_.void_steps += step.void_step ? 1 : 0;
      if (told) told(step);
    };
    return s;
  }

  void begin() {
    if (Status s = checkpoints_ ? checkpoints_->begin(fresh_number()) : Status{}; !s.ok()) end(s, exit_checkpoint);
    else if (s = start(); !s.ok()) end(s, exit_worker);
  }

  std::unique_ptr<CheckpointTracker> make_checkpoints() {
    if (!disk_) return nullptr;
    return std::make_unique<CheckpointTracker>(plan_, options_.checkpoint, options_.session.first_step,
                                               options_.session.steps, storage_, *disk_, clock_);
  }

  /// Commits the checkpoints that all workers have written. A run that ends without its last checkpoint has failed.
  void finish_checkpoints() {
    const Status s = checkpoints_->finish();
    const int code = checkpoints_->diverged() ? exit_diverged : exit_checkpoint;
    if (s.ok() || (!result_.status.ok() && result_.exit_code != exit_interrupted && result_.exit_code != pause_.code()))
      return;
    // A job that a signal has paused says exit_interrupted where its last checkpoint is saved, or a second signal has
    // ended it before; never where a save has failed.
    if (result_.status.ok()) result_.status = s, result_.exit_code = code;
    else if (pause_.begun()) result_.status = pause_.unsaved(s), result_.exit_code = code;
  }
  /// Makes the result name workers that SIGKILL has not ended, beside any other error that the job has ended with.
  void left_behind(const Status& left) {
    const Status& s = result_.status;
    if (s.ok()) result_.exit_code = exit_worker;
    result_.status = s.ok() ? left : Status(s.code(), left.message() + "; " + s.message());
  }

  Status start() {
    for (Rank r = 0; r < plan_.workers(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      TROUPE_TRY(launcher_.start(i < options_.prefixes.size() ? options_.prefixes[i] : std::vector<std::string>{}));
      log_debug(fmt::format("{} is process {}", worker(r), launcher_.workers()[i].pid));
    }
    send_all(PlanBytes{write_plan(plan_)});
    for (const Hello& h : hellos(options_, plan_.workers(), checkpoints_ ? checkpoints_->target() : CheckpointTarget{}))
      send(h.rank, h);
    return {};
  }

  static SharedBytes encoded(const ToWorker& message) {
    return std::make_shared<const std::vector<std::byte>>(encode(message));
  }
  void send(Rank to, const ToWorker& message) { post(to, encoded(message)); }
  /// The same bytes to each worker: a plan may be large, and a job may have many.
  void send_all(const ToWorker& message) {
    const SharedBytes bytes = encoded(message);
    for (Rank to = 0; to < plan_.workers(); ++to) post(to, bytes);
  }
  void post(Rank to, SharedBytes message) {
    auto& w = launcher_.workers()[to];
    // turn() notices a broken link where it reads; the exit of the worker's process says why.
    const Status s = w.link ? w.link->post(std::move(message)) : Status{};
    if (!s.ok() && s.code() != Code::unavailable) end(s.in(worker(to)), exit_worker);
  }

  void end(Status status, int code) {
    if (over_) return;
    over_ = true;
    if (diverged_) {
      if (!status.ok() && code != exit_diverged)
        log_warn("training has diverged, and the wait for what reads steps before ends early: " + status.message());
      status = *diverged_, code = exit_diverged;
    }
    result_.status = std::move(status);
    result_.exit_code = result_.status.ok() ? exit_ok : code;
  }

  void turn() {
    auto& workers = launcher_.workers();
    std::vector<pollfd> fds;
    std::vector<std::pair<int, Rank>> what;  // 0 link, 1 log, 2 death, 3 signal
    auto add = [&](int fd, int kind, Rank r, short events = POLLIN) {
      if (fd < 0) return;
      fds.push_back({fd, events, 0});
      what.push_back({kind, r});
    };
    for (Rank r = 0; r < static_cast<Rank>(workers.size()); ++r) {
      auto& w = workers[r];
      // A worker that does not read must not delay the other workers, nor signals.
      const short more = w.link && w.link->unsent() ? POLLOUT : 0;
      if (!stopped_.count(r) && w.link && !broken_.count(r)) add(w.link->fd(), 0, r, static_cast<short>(POLLIN | more));
      add(w.log_fd, 1, r);
      if (w.held) launcher_.reap(w);  // once a turn: its pidfd stays readable
      else if (!w.exited) add(w.pidfd, 2, r);
    }
    add(signals_.fd(), 3, 0);
    constexpr auto poll_timeout = std::chrono::milliseconds(200);
    const auto before = clock::now();
    const bool polled = ::poll(fds.data(), fds.size(), static_cast<int>(poll_timeout.count())) >= 0;
    // While this process was stopped (Ctrl-Z, a suspended machine) it heard no worker: restart the stall clock.
    if (clock::now() - before > 5 * poll_timeout) heard();
    for (std::size_t i = 0; i < fds.size() && !over_; ++i) {
      const auto [kind, r] = what[i];
      if (kind == 0 && (fds[i].revents & POLLOUT) != 0) (void)workers[r].link->flush().ok();
      if (kind == 0 && (fds[i].revents & ~POLLOUT) != 0) read_link(r);
      else if (kind == 0 && polled && workers[r].exited) broken_.insert(r);  // since before; its child holds the link
      if (fds[i].revents == 0) continue;
      if (kind == 1) launcher_.read_log(workers[r], [&, rank = r](const std::string& line) { log(rank, line); });
      else if (kind == 2) workers[r].held = !launcher_.reap(workers[r]);
      else if (kind == 3) on_signal();
    }
    if (over_) return;
    for (Rank r = 0; r < static_cast<Rank>(workers.size()); ++r)
      if (workers[r].exited && broken_.count(r) && !stopped_.count(r)) return died(r);  // all its messages are read
    if (diverged_ && !session_.readers_left()) return end({}, exit_diverged);
    if (checkpoints_)
      if (const Status s = checkpoints_->poll(); !s.ok())
        return end(pause_.unsaved(s), checkpoints_->diverged() ? exit_diverged : exit_checkpoint);
    if (!pause_.asked() && session_.committed() < options_.session.steps && options_.reader_gone &&
        options_.reader_gone()) {
      on_signal();  // Ctrl-C ends a reader in the same pipe as well: it is the reason, then
      if (!over_ && !pause_.asked()) interrupt(reader_gone_error().message(), exit_reader_gone);
    }
    if (options_.give_up)
      if (Status s = options_.give_up(); !s.ok()) return end(std::move(s), exit_output);
    const auto now = clock::now();
    if (pending_ && now >= pending_until_) return end(with_log(pending_rank_, *pending_), exit_worker);
    if (static_cast<Rank>(stopped_.size()) == plan_.workers()) return end(pause_.status(), pause_.code());
    if (explaining_ && (now >= explain_until_ || static_cast<Rank>(explanations_.size()) == plan_.workers()))
      return stalled();
    if (!explaining_ && now - last_message_ > std::chrono::seconds(options_.stall_s)) {
      explaining_ = true;
      explain_until_ = now + std::chrono::seconds(1);
      log_debug(fmt::format("no progress for {} s: the workers are asked what they wait for", options_.stall_s));
      send_all(ExplainAll{});
    }
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
    if (!signal) return;
    if (!pause_.covers(*signal)) interrupt(std::string("interrupted by ") + ::strsignal(*signal), exit_interrupted);
  }

  /// Ends the job, with a checkpoint where `code` is the first reason to and one can be saved.
  void interrupt(const std::string& why, int code) {
    const std::int64_t version = session_.earliest_end();
    const bool can_pause = checkpoints_ && ready_ == plan_.workers();
    if (pause_.asked() || !can_pause || diverged_) return end(Status(Code::unavailable, why), code);
    pause_.begin(why, code, version, options_.session.steps);
    if (pause_.begun()) checkpoints_->end_with(version), session_.pause_at(version);
    if (options_.on_pause) options_.on_pause(why, version);
  }

  void read_link(Rank r) {
    std::deque<std::vector<std::byte>> messages;
    const Status s = launcher_.workers()[r].link->receive(messages);
    for (const auto& bytes : messages) {
      auto message = decode_from_worker(bytes);
      if (!message.ok()) return end(message.status().in(worker(r)), exit_worker);
      handle(r, *message);
      if (over_) return;
    }
    if (s.ok()) return;
    if (s.code() != Code::unavailable) return end(s.in(worker(r)), exit_worker);
    broken_.insert(r);  // its process is about to end; `died` says how
    log_debug(worker(r) + ": " + s.message());
  }

  /// Notes a sign of progress: ends the suspicion of a stall.
  void heard() {
    last_message_ = clock::now();
    explaining_ = false;
    explanations_.clear();
  }

  void handle(Rank r, FromWorker& message) {
    if (!std::holds_alternative<Explained>(message)) heard();
    if (auto* m = std::get_if<WorkerAddress>(&message)) {
      addresses_.addresses[r] = m->blob;
      if (static_cast<Rank>(addresses_.addresses.size()) != plan_.workers()) return;
      log_debug("all workers have an address and connect");
      send_all(addresses_);
    } else if (auto* m = std::get_if<Ready>(&message)) {
      result_.places[r].restored_bytes = m->restored_bytes;
      result_.places[r].restore_s = m->restore_s;
      if (++ready_ < plan_.workers()) return;
      log_debug(fmt::format("all workers are ready: version {} begins", session_.committed()));
      if (options_.on_ready) options_.on_ready();
      if (Status s = session_.begin(); !s.ok()) end(std::move(s), exit_worker);
    } else if (auto* m = std::get_if<Spans>(&message)) {
      auto& all = result_.places[r].spans;
      result_.places[r].dropped_spans += m->dropped;
      all.insert(all.end(), std::make_move_iterator(m->spans.begin()), std::make_move_iterator(m->spans.end()));
    } else if (auto* m = std::get_if<Stopped>(&message)) {
      auto& place = result_.places[r];
      place.peak_bytes = m->peak_bytes;
      place.file_bytes = m->file_bytes;
      place.shared_bytes = m->shared_bytes;
      place.sent_bytes = m->sent_bytes;
      place.received_bytes = m->received_bytes;
      stopped_.insert(r);
    } else if (auto* m = std::get_if<Explained>(&message)) {
      explanations_[r] = m->text;
    } else if (!session_.finished() && (!pending_ || is_saved(message))) {
      // After the end, peers that close their connections are no failures.
      const Status s = session_.handle(r, message);
      if (s.ok()) return;
      if (session_.diverged() && !diverged_) {
        // Versions before are not known to be bad: turn() waits for their saves and evaluations under way.
        diverged_ = s;
        log_debug(s.message() + "; the job ends when the programs that read versions before have closed");
      } else if (s.code() == Code::unavailable) {
        // Most likely another worker has died, which is the culprit: wait a moment for its death to show.
        pending_ = s;
        pending_rank_ = r;
        pending_until_ = clock::now() + std::chrono::milliseconds(700);
      } else {
        end(with_log(r, s), s.code() == Code::damaged ? exit_checkpoint : exit_worker);
      }
    }
  }

  /// Whether a worker says that its part of a checkpoint is written: that counts while a failure is pending, too.
  bool is_saved(const FromWorker& message) const {
    const auto* closed = std::get_if<Closed>(&message);
    return closed && closed->program == plan_.program("snapshot");
  }

  Status with_log(Rank r, const Status& s) {
    auto& w = launcher_.workers()[r];
    launcher_.read_log(w, [&](const std::string& line) { log(r, line); });
    return w.with_last_lines(s);
  }

  void died(Rank r) {
    const auto& w = launcher_.workers()[r];
    const std::string how = fmt::format("{} (pid {}) {}", worker(r), w.pid, describe_exit(w.wait_status));
    end(with_log(r, Status(Code::unavailable, how)), exit_worker);
  }

  void stalled() {
    const std::string text = stall_text(options_.stall_s, plan_.workers(), session_.waits_for(), explanations_);
    end(Status(Code::unavailable, text), exit_stalled);
  }

  EndSignals signals_;  // from before the first worker starts
  const Plan& plan_;
  JobOptions options_;
  const int killed_ms_;  // see run_job
  SteadyClock clock_;
  CpuDevice device_{clock_, {}};
  FileStorage storage_;
  std::unique_ptr<Stream> disk_;
  std::unique_ptr<CheckpointTracker> checkpoints_;  // destroyed before the stream
  Session session_;
  Launcher launcher_;
  JobResult result_;
  Connect addresses_;
  Rank ready_ = 0, pending_rank_ = 0;
  bool over_ = false, explaining_ = false;
  Pause pause_;
  std::set<Rank> stopped_, broken_;
  std::optional<Status> pending_;
  std::optional<Status> diverged_;  // what the job ends with once the readers of good versions have closed
  clock::time_point pending_until_, last_message_, explain_until_;
  std::map<Rank, std::string> explanations_;
};

}  // namespace

JobResult run_job(const Plan& plan, JobOptions o, int killed_ms) { return Job(plan, std::move(o), killed_ms).run(); }

}  // namespace troupe::runtime
