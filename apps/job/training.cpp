#include "apps/job/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "apps/job/argument_checks.h"
#include "apps/job/lead.h"
#include "apps/job/placing.h"
#include "apps/job/run_record.h"
#include "apps/job/running.h"
#include "apps/lm/data.h"
#include "apps/lm/learning_rate.h"
#include "apps/lm/unpack.h"
#include "apps/options/recovery.h"
#include "apps/report/output.h"
#include "devices/base/check.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "runtime/agents/agent_port.h"
#include "runtime/agents/token.h"
#include "runtime/launch/gather_machines.h"
#include "runtime/launch/kept_run.h"

namespace troupe::lm {

using namespace runtime;

namespace {

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

}  // namespace

Training::Training(const App& app, const JobArguments& a, Prepared prepared, std::optional<Resume> resume,
                   std::optional<ResumePoint> point, std::optional<KeptDecisions> decided)
    : app_(app), a_(a), p_(std::move(prepared)), decided_(std::move(decided)),
      steps_(a.steps >= 0 ? a.steps : p_.config.schedule.steps), resume_(std::move(resume)),
      folder_(storage_, a.out, resume_ ? &*resume_ : nullptr), point_(std::move(point)), results_(a, p_, steps_),
      sampler_(a.sample_text.empty() ? p_.config.sample.prompt : a.sample_text) {}

std::optional<int> Training::end_if_done() {
  const RunRecord record = read_run_record(a_.out);
  const bool is_its_checkpoint = point_ && a_.resumes_latest() && record.job == point_->manifest.stamp.job;
  const bool goes_on = a_.resumes_memory() || (is_its_checkpoint && record.job != 0);
  if (a_.machines.count == 0 || !goes_on || steps_ == 0 || record.finished_steps < steps_) return {};
  if (!a_.store.url.empty()) {  // the process that led it may not have told the store
    auto lead = make_lead(a_);
    const EndSignals signals;
    if (lead.ok() && *lead && (*lead)->take(a_.machines.listen, signals.fd()).ok()) (*lead)->went_on();
  }
  log_info(
      fmt::format("the run in '{}' has done its {}: there is nothing to go on with", a_.out, counted(steps_, "step")));
  return exit_ok;
}

int Training::run() {
  int code = exit_ok;
  if (const auto done = end_if_done()) return *done;
  if (const Status s = open(code); !s.ok()) {
    if (gathered_) turn_away(gathered_->joined, s);
    return say(s, code);
  }
  for (const auto& warning : p_.warnings) log_warn(warning);
  if (!guards_.warning.empty()) log_warn(guards_.warning);
  for (const auto& warning : useless_arguments(a_, p_.config, first_step_, steps_)) log_warn(warning);
  if (const auto warning = mesh_warning(p_.mesh, p_.config); !warning.empty()) log_warn(warning);
  if (const auto warning = tokens_warning(p_.config); !warning.empty()) log_warn(warning);
  if (p_.config.eval.every > 0)
    if (const auto warning = windows_warning("eval.batches={}", p_.config.eval.batches, *corpus_, p_.config);
        !warning.empty())
      log_warn(warning);
  JobResult result;
  for (;;) {
    JobOptions options = this->options();
    options.checked = true;  // by open()
    result = app_.run(plan_, std::move(options));
    gathered_.reset();  // the job has taken them
    kept_.reset();
    if (result.status.code() != Code::damaged || !point_) break;
    // The checkpoint's manifest was good and its data is not: tries an older one, unless the user named this
    // checkpoint.
    resume_->reject(result.status);
    auto older = resume_->next();
    if (!older.ok()) break;
    point_ = *std::move(older);
    if (Status s = begin_at_point(result.exit_code); !s.ok()) {
      result.status = std::move(s);
      break;
    }
  }
  for (const std::string& drill : result.missed_drills)
    log_warn("the drill '" + drill + "' has hit nothing: its act has not come");
  Status s = result.status;
  code = result.exit_code;
  if (lead_ && !s.ok())
    if (const Status led = lead_->look_now(); !led.ok()) s = led, code = exit_superseded;
  if (code == exit_superseded) {  // the files are another process's
    end_signals_.reset();
    results_.end_progress();
    return say(Status(s.code(), s.message() + ": this process has ended"), code);
  }
  // What the reading actor has failed with.
  if (changed_data_.ok() && code == exit_worker) changed_data_ = corpus_->unchanged();
  if (!s.ok() && !changed_data_.ok()) s = changed_data_, code = exit_data;
  if (s.ok())
    if (s = results_.evaluation(); !s.ok()) code = exit_diverged;
  if ((code == exit_interrupted || code == exit_reader_gone) && results_.saved_step() > first_step_)
    s = Status(s.code(), s.message() + "; go on with --resume");
  if (s.code() == Code::superseded)
    s = Status(s.code(), s.message() +
                             "; leave the folder to the job that has claimed it, or end that job and go on "
                             "here with --resume");
  if (code == exit_diverged) s = Status(s.code(), s.message() + advice());
  if (code == exit_do_not_requeue) s = with_advice(s);
  // in the last step
  if (s.ok() && !results_.write_error().ok()) s = results_.write_error(), code = exit_output;
  if (const Status w = results_.write_files(result, s, sampler_.text()); s.ok() && !w.ok()) s = w, code = exit_output;
  end_signals_.reset();
  results_.end_progress();
  if (!s.ok()) return say(s, code);
  results_.print_summary(result, sampler_.text());
  return exit_ok;
}

/// Into the first line: behind it may come logs, and what the workers waited for.
Status Training::with_advice(const Status& gave_up) const {
  const std::string& text = gave_up.message();
  auto end = std::min(text.find('\n'), text.size());
  if (const std::string_view logs = "; its last log lines:"; std::string_view(text).substr(0, end).ends_with(logs))
    end -= logs.size();
  return Status(gave_up.code(),
                fmt::format("{}. Started anew it would most likely fail again: all causes are in incidents.jsonl. If "
                            "something outside the run took the workers, {}{}",
                            text.substr(0, end),
                            point_ || results_.saved_step() > first_step_ ? "go on with --resume" : "start it again",
                            text.substr(end)));
}

std::string Training::advice() const {
  // No learning rate of this run has had an effect on what its first step finds.
  if (point_ && !results_.has_steps())
    return "; the weights in '" + point_->folder + "' are not finite, or too large: go on from another checkpoint";
  return "; lower schedule.lr or raise schedule.warmup";
}

/// Checks all that can be checked before a worker starts. On an error, `code` is the exit code for it.
Status Training::open(int& code) {
  code = exit_usage;
  TROUPE_ASSIGN(lead_, make_lead(a_));
  if (lead_) results_.writes_while([this] { return lead_->surely_leads(); });
  if (a_.machines.count > 0) TROUPE_TRY(check_machines(code));
  code = exit_data;
  if (a_.data.empty()) return invalid("no training text: name one with --data FILE (plain text, .gz or .dz)");
  if (p_.config.checkpoint.every > 0)
    TROUPE_TRY(check_checkpoint_dir(storage_, a_, resume_ ? &*resume_ : nullptr, point_ ? &*point_ : nullptr, code));
  code = exit_output;
  TROUPE_TRY(folder_.open());
  TROUPE_ASSIGN(text_, open_text(code));
  TROUPE_TRY(plan(code));
  end_signals_.emplace();
  if (a_.machines.count > 0) {
    TROUPE_TRY(gather(code));
    if (!decided_) TROUPE_TRY(plan(code));
  }
  for (const auto& choice : choices_) log_info(choice);
  if (a_.resumes_memory()) return begin_from_memory(code);
  if (point_) return begin_at_point(code);
  code = exit_output;
  return open_results(0, false, code);
}

Status Training::plan(int& code) {
  code = exit_plan;
  const auto prompt = a_.sample ? sampler_.prompt() : std::vector<std::int64_t>();
  choices_.clear();
  if (decided_) {
    Prepared as_decided = p_;
    Status s = decide_as(as_decided, a_, *decided_);
    auto made = s.ok() ? make_plan(app_, as_decided, text_, prompt) : Expected<AheadChoice>(s);
    if (s = made.status(); s.ok()) {
      p_ = std::move(as_decided);
      choices_.push_back("the plan is the one with which the run began");
      return take_plan(std::move(made->plan), placing_text(p_, {}) + decided_text(*decided_));
    }
    log_warn("the run cannot have the plan with which it began, and makes another one: " + s.message());
    decided_.reset();
  }
  const auto bound = memory_for_plans(a_, p_);
  TROUPE_ASSIGN(const auto orders, choose_order(app_, p_, text_, prompt, bound));
  TROUPE_ASSIGN(AheadChoice made, make_plan(app_, p_, text_, prompt, bound));
  if (!made.tried.empty()) {
    std::string chosen = fmt::format("schedule.ahead is auto: {} is chosen", made.plan.pipeline.ahead);
    if (made.plan.pipeline.weights_apart) chosen += ", weight gradients apart";
    if (made.tried[0].verdict == AheadVerdict::does_not_fit)
      chosen += ", though it does not fit: " + bound_text(p_, bound);
    choices_.push_back(std::move(chosen));
  }
  const std::string text = placing_text(p_, orders) + tried_text(made, bound_text(p_, made.bound));
  return take_plan(std::move(made.plan), text);
}

Status Training::take_plan(Plan plan, std::string text) {
  plan_ = std::move(plan);
  ahead_ = std::move(text);
  TROUPE_TRY(app_.check(plan_, options()));
  TROUPE_ASSIGN(predicted_, predict(plan_));
  const std::int64_t done = point_ ? point_->manifest.stamp.step : 0;
  guards_ = choose_guards(a_, plan_, predicted_.game.step_s, steps_ - done);
  TROUPE_TRY(check_memory_of_machines(a_, p_, plan_));
  ahead_ += guards_.text;
  if (!guards_.summary.empty()) choices_.push_back(guards_.summary);
  return {};
}

KeptPlans& Training::kept_plans() {
  if (!kept_plans_)
    kept_plans_.emplace(std::make_shared<const Plan>(plan_), kept_as(),
                        [this](const StageWidths& dp) { return replan(dp); });
  return *kept_plans_;
}

Status Training::take_kept_plan(const Plan& plan) {
  if (digest_of_plan(plan, "") == digest_of_plan(plan_, "")) return {};
  const std::string shape = shape_of(plan);
  const auto first = std::make_shared<const Plan>(plan_);
  choices_.clear();
  TROUPE_TRY(take_plan(plan, placing_text(p_, {}) + (decided_ ? decided_text(*decided_) : "")));
  results_.goes_on_as(shape);
  if (a_.replace == "never") wanted_ = first;  // it has come to this one by losses
  log_info("the plan is that of " + shape + ", with which the run went on");
  return {};
}

std::string Training::why_none_is_kept(std::int64_t lines) {
  const auto& agents = gathered_->joined;
  if (std::all_of(agents.begin(), agents.end(), [](const auto& one) { return one.joins.kept.places.empty(); }))
    return "they have kept nothing";
  if (!kept_plans().are_of_run(agents)) return "what they have kept is of another configuration, text or output folder";
  if (lines == 0) return fmt::format("'{}/metrics.jsonl' has no line of a step", a_.out);
  if (const auto later = kept_plans().newest(agents, std::numeric_limits<std::int64_t>::max()))
    return fmt::format("they have kept step {}, and '{}/metrics.jsonl' ends with step {}: lines of it are lost",
                       later->run.version, a_.out, lines - 1);
  return "a machine that has a part of it is missing";
}

Expected<std::int64_t> Training::lines_before() const {
  TROUPE_ASSIGN(const auto before,
                report::read_lines_before(a_.out + "/metrics.jsonl", std::numeric_limits<std::int64_t>::max()));
  return before.train.empty() ? 0 : static_cast<std::int64_t>(before.train.back().step) + 1;
}

Status Training::plan_anew(int& code) {
  code = exit_usage;
  if (const Status s = put_on_machines(p_, a_, machines_joined()); !s.ok()) return takes_fewer() ? Status{} : s;
  decided_.reset();
  kept_plans_.reset();
  p_.ahead.reset();
  TROUPE_TRY(plan(code));
  for (const auto& choice : choices_) log_info(choice);
  return {};
}

std::vector<Machine> Training::machines_joined() const {
  std::vector<Machine> machines;
  for (const auto& one : gathered_->joined) {
    const auto of_host = [&](const auto& other) { return other.joins.host == one.joins.host; };
    const auto share = std::count_if(gathered_->joined.begin(), gathered_->joined.end(), of_host);
    machines.push_back({one.joins.machine, one.joins.places, one.joins.memory_bytes / share});
  }
  return machines;
}

Status Training::gather(int& code) {
  JobMachines wanted = options().machines;
  if (takes_fewer()) wanted.count_to_go_on = wanted.count_min;
  LookAtKept look_at_kept;
  if (a_.resumes_memory())
    look_at_kept = [this](std::span<const AgentPort::Joined> agents) {
      if (!decided_) return KeptThere();  // it is not known what the run decided: it may have had another plan
      const auto lines = lines_before();
      return kept_plans().look(agents, lines.ok() ? *lines : 0, !takes_fewer());
    };
  auto gathered = open_and_gather(wanted, end_signals_->fd(), look_at_kept);
  const Code failed = gathered.status().code();
  code = failed == Code::invalid || failed == Code::denied ? exit_usage
         : failed == Code::superseded                      ? exit_superseded
                                                           : exit_worker;
  TROUPE_ASSIGN(gathered_, std::move(gathered));
  if (!gathered_) {
    code = exit_interrupted;
    return end_signals_->interrupted();
  }
  code = exit_usage;
  // What was decided is of the run's first mesh: the job sees whether there is room for the one that it goes on with.
  const Status s = decided_ ? Status() : put_on_machines(p_, a_, machines_joined());
  // Where some are lost, with their places, it is the plan that the run had that says what is left.
  return takes_fewer() ? Status{} : s;
}

/// Agents can join: the run listens there once it has a plan.
Status Training::check_machines(int& code) const {
  TROUPE_ASSIGN(const TokenKey token, a_.machines.key());
  const Status s = AgentPort::open(a_.machines.listen, token).status();
  if (s.code() != Code::invalid) code = exit_worker;
  return s;
}

Expected<std::string> Training::open_text(int& code) {
  return interruption_.during([&](const GiveUp& give_up) { return open_corpus(give_up, code); }, code);
}

Expected<std::string> Training::open_corpus(const GiveUp& give_up, int& code) {
  bool of_output = false;  // the folder into which the text is unpacked is part of it
  auto unpacked = plain_text_path(a_.data, a_.out + "/corpus", give_up, &of_output);
  if (!of_output) code = exit_data;
  TROUPE_ASSIGN(std::string text, std::move(unpacked));
  TROUPE_ASSIGN(Corpus corpus, Corpus::open(corpus_options(p_.config, text), give_up));
  TROUPE_ASSIGN(fingerprint_, corpus.fingerprint());
  corpus_.emplace(std::move(corpus));
  if (const auto& wanted = p_.config.data.fingerprint; !wanted.empty() && wanted != fingerprint_)
    return invalid("data file '" + a_.data + "' has fingerprint " + fingerprint_ + ", and 'data.fingerprint' is " +
                   wanted + ": it is not the text that the run began with");
  return text;
}

Status Training::begin_at_point(int& code) {
  const auto& manifest = point_->manifest;
  std::vector<std::string> warnings = resume_->notes(), notes;
  // Without a path in the arguments, p_.config is this configuration and p_.warnings has its warnings.
  code = exit_checkpoint;
  TROUPE_ASSIGN(LmConfig saved, saved_config(*point_, {}, a_.config_path.empty() ? nullptr : &warnings));
  code = exit_usage;
  LmConfig now = p_.config;
  now.data.fingerprint = fingerprint_;
  const Status fits = is_weights_only(manifest) ? check_model(saved, now) : check_resumable(saved, now, notes);
  now.data.fingerprint = saved.data.fingerprint;
  if (std::vector<std::string> told; !fits.ok() && check_resumable(saved, now, told).ok()) code = exit_data;
  TROUPE_TRY(fits.in("cannot go on from '" + point_->folder + "'"));
  first_step_ = manifest.stamp.step;
  if (first_step_ > 0) results_.goes_on(manifest.stamp.job);
  if (first_step_ > steps_)
    return invalid(fmt::format("'{}' is of step {}, and the run is to end after {}: raise --steps or schedule.steps",
                               point_->folder, first_step_, steps_));
  code = exit_output;
  TROUPE_TRY(open_results(first_step_, continues_results(a_.out, *point_), code));
  for (const auto& warning : warnings) log_warn(warning);
  for (const auto& note : notes) results_.note(note);
  results_.note(resumed_text(*point_, p_.config.checkpoint.every));
  return {};
}

Status Training::open_results(std::int64_t first_step, bool goes_on, int& code) {
  // Planning may have taken long: the files may be another process's by now.
  if (const Status led = lead_ ? lead_->make_sure() : Status(); !led.ok()) {
    code = led.code() == Code::superseded ? exit_superseded : exit_worker;
    return led;
  }
  return results_.open(plan_, predicted_, first_step, goes_on, ahead_);
}

Status Training::begin_from_memory(int& code) {
  // Not before the agents have joined: until then they may have served the leader, and it has written lines.
  code = exit_output;
  TROUPE_ASSIGN(const std::int64_t told, lines_before());
  auto kept = kept_plans().newest(gathered_->joined, told);
  const std::int64_t saved = point_ ? point_->manifest.stamp.step : -1;
  if (decided_ && (!kept || kept->run.version < saved)) {
    TROUPE_TRY(plan_anew(code));
    if (!kept) kept = kept_plans().newest(gathered_->joined, told);
  }
  if (kept && kept->run.version >= saved) {
    first_step_ = kept->run.version;
    if (first_step_ > steps_) {
      code = exit_usage;
      return invalid(
          fmt::format("the agents have kept step {}, and the run is to end after {}: raise --steps or "
                      "schedule.steps",
                      first_step_, steps_));
    }
    if (point_) results_.goes_on(point_->manifest.stamp.job);
    kept_ = std::make_shared<const KeptRun>(std::move(kept->run));
    code = exit_plan;
    if (const Status s = take_kept_plan(*kept->plan); !s.ok()) {
      if (!point_) return s;
      log_warn(s.message() + ": the run goes on from its newest checkpoint");
      kept_.reset();
      TROUPE_TRY(plan_anew(code));
      return begin_at_point(code);
    }
    code = exit_output;
    TROUPE_TRY(open_results(first_step_, true, code));
    results_.note(fmt::format("goes on from step {}, which agents have kept in memory", first_step_));
    return {};
  }
  const std::string none = "the agents have kept no whole step of this run: " + why_none_is_kept(told);
  code = exit_checkpoint;
  if (!point_ && a_.taken_over && told == 0) {  // the leader was lost before the first step was done
    code = exit_output;
    return open_results(0, true, code);
  }
  if (!point_) return Status(Code::not_found, "--resume memory: " + none + "; and it has no checkpoint");
  if (!kept) log_warn(none + ": the run goes on from its newest checkpoint");
  return begin_at_point(code);
}

std::string Training::identity() const {
  LmConfig config = p_.config;
  config.data.fingerprint = fingerprint_;
  return to_toml(config);
}

std::string Training::kept_as() const {
  std::error_code error;
  const auto folder = std::filesystem::weakly_canonical(a_.out, error);
  return identity() + "\n# " + (error ? a_.out : folder.string());
}

bool Training::evaluates_at(std::int64_t version) const {
  const auto every = p_.config.eval.every;
  return every > 0 && version > 0 && (version % every == 0 || version == steps_);
}

Expected<Plan> Training::replan(const StageWidths& dp) const {
  Prepared p = p_;
  p.mesh.dp = dp;
  p.mesh.pp = std::ssize(dp);
  p.ahead.reset();
  const MeshConfig before = std::exchange(p.config.mesh, mesh_config(p.mesh));
  p.config.mesh.zero = before.zero;
  p.config.mesh.shared_vocabulary = before.shared_vocabulary;
  if (dp.size() == 1) p.config.schedule.pipeline = ScheduleConfig().pipeline;  // the others need stages
  TROUPE_TRY(validate(p.config));
  TROUPE_TRY(check_mesh(p.mesh, p.config));
  if (Prepared placed = p; !p.machines.empty() && put_on_machines(placed, a_, p.machines).ok())
    p = std::move(placed);  // else others have joined since, and have some of the places
  TROUPE_ASSIGN(AheadChoice made,
                make_plan(app_, p, text_, a_.sample ? sampler_.prompt() : std::vector<std::int64_t>()));
  return std::move(made.plan);
}

JobOptions Training::options() {
  JobOptions o;
  o.threads = static_cast<int>(p_.config.run.threads);
  o.device = a_.device;
  o.pin = a_.pin;
  o.tls = a_.tls;
  o.net_devices = a_.net_devices;
  o.machines = a_.machines;
  o.machines.lead = lead_;
  if (lead_) o.machines.joins_by = "troupe agent --store";
  o.gathered = gathered_;
  o.places_together = static_cast<int>(p_.mesh.tp);
  o.kept = kept_;
  o.wanted = wanted_;
  o.identity = kept_as();
  for (const auto& prefix : a_.worker_prefixes) o.prefixes.push_back(split_words(prefix));
  o.throttle = p_.throttle;
  o.paced = a_.paced > 0 ? 1 : 0;
  o.run_kernels = a_.paced == 0;
  o.trace = a_.trace;
  const auto recovery = parse_recovery(p_.config.run.recovery);
  ASSERT(recovery.ok(), p_.config.run.recovery);  // validate() has read it
  o.recovers = recovery->on();
  o.session.copy_every = recovery->copy_every;
  o.guard_within = guards_.within;
  o.guard_window_most = guards_.window_most;
  o.detect_budget_ms = a_.detect_budget_ms;
  if (o.recovers) {
    o.grace_s = a_.grace_s;
    o.replaces = a_.replace == "always";
    o.spares = o.replaces ? 0 : a_.spares;
    o.replan = [this](const StageWidths& dp) { return replan(dp); };
    o.inputs_unchanged = [this] { return corpus_->in_place(); };
    o.socket = socket_of(a_.out);
    o.read_shape = [this](const std::string& text) -> Expected<StageWidths> {
      TROUPE_ASSIGN(const MeshSpec mesh, parse_mesh(text));
      if (mesh.tp == p_.mesh.tp) return mesh.dp;
      return invalid(fmt::format("'{}' has tp={}, and the run tp={}: another tp would change its bits", text, mesh.tp,
                                 p_.mesh.tp));
    };
  }
  o.inject = p_.injections;
  o.on_incident = [this](const Incident& incident) {
    const bool ends_here = incident.act_ns < 0;  // it may be that another process leads the run, and tells of it
    if (!ends_here || !lead_ || lead_->look_now().ok()) results_.incident(incident);
  };
  o.on_straggler = [this](const runtime::Straggler& straggler) { results_.straggler(straggler); };
  o.stall_s = a_.stall_s;
  o.on_ready = [this] {
    results_.ready();
    changed_data_ = corpus_->in_place();  // the workers have opened what the fingerprint is of
  };
  o.on_pause = [this](const std::string& why, std::int64_t version) {
    results_.note(fmt::format(
        "{}: saving a checkpoint of step {}; another SIGINT or SIGTERM, at least a second from now, ends the "
        "run at once",
        why, version));
  };
  o.reader_gone = report::reader_gone;
  o.give_up = [this] { return changed_data_.ok() ? results_.write_error() : changed_data_; };
  if (point_ && kept_) o.checkpoint.job = point_->manifest.stamp.job;
  else o.checkpoint.restore = point_ ? point_->folder : "";
  if (p_.config.checkpoint.every > 0) {
    const auto& c = p_.config.checkpoint;
    o.checkpoint.dir = checkpoint_dir(a_);
    o.checkpoint.lock = folder_.lock_of(o.checkpoint.dir);
    if (!o.checkpoint.lock && a_.taken_over)  // a leader that is frozen may hold it: see locks_of
      if (auto lock = checkpoint::Catalog(storage_, o.checkpoint.dir).lock(); lock.ok())
        o.checkpoint.lock = *std::move(lock);
    o.checkpoint.every = c.every;
    o.checkpoint.retention = {c.keep, c.keep_every};
    o.checkpoint.failures_max = static_cast<int>(c.max_failures);
    o.checkpoint.config = identity();
    o.checkpoint.on_begin = [this](const checkpoint::Stamp& claim) { results_.begun(claim.job, claim.generation); };
    o.checkpoint.on_event = [this](const CheckpointEvent& e) { results_.checkpoint(e); };
  }
  SessionOptions& s = o.session;
  s.first_step = first_step_;
  if (kept_) s.sums = kept_->sums;
  s.steps = steps_;
  s.clip = p_.config.optimizer.clip;
  s.loss_divisor = static_cast<double>(tokens_per_step(p_.config));
  s.lr = [this](std::int64_t step) { return lr_at(p_.config.schedule, step); };
  s.readers = [this](std::int64_t version) {
    std::vector<std::string> programs;
    if (evaluates_at(version)) programs.push_back("evaluate");
    if (a_.sample && version == steps_) programs.push_back("sample");
    return programs;
  };
  s.on_event = [this](std::int64_t at_ns, std::uint32_t generation) { results_.at(at_ns, generation); };
  s.on_started = [this](const std::string& program, std::int64_t version) {
    if (program == "evaluate") results_.evaluating(version);
  };
  s.on_step = [this](const StepResult& r) { results_.step(r); };
  s.on_closed = [this](const std::string& program, std::int64_t step, const std::vector<Report>& reports) {
    if (program == "sample") sampler_.finish(reports);
    else results_.evaluated(step, reports);
  };
  return o;
}

}  // namespace troupe::lm
