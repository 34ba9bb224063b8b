#include "apps/job/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/job/kept_decisions.h"
#include "apps/job/output_folder.h"
#include "apps/job/run_record.h"
#include "apps/report/trace_json.h"
#include "devices/base/text_table.h"
#include "runtime/show/plan_text.h"

namespace troupe::lm {

using namespace runtime;

namespace {

report::Progress::Options progress_options(bool quiet, std::int64_t steps) {
  static std::FILE* nowhere = std::fopen("/dev/null", "w");
  auto options = quiet ? report::Progress::Options{.out = nowhere} : report::Progress::options_of(stdout);
  options.end_step = steps;
  return options;
}

/// The path from the root: a command that reads run.json later may have another working directory.
std::string absolute(const std::string& path) {
  std::error_code error;
  const auto from_root = std::filesystem::absolute(path, error);
  return path.empty() || error ? path : from_root.string();
}

std::int64_t dropped_spans(const JobResult& result) {
  std::int64_t dropped = 0;
  for (const auto& place : result.places) dropped += place.dropped_spans;
  return dropped;
}

}  // namespace

std::string void_step_text(const StepResult& r) {
  const auto where = r.void_microbatch < 0 ? "" : fmt::format("in microbatch {} ", r.void_microbatch);
  return fmt::format(
      "step {} is void: {}a gradient term of '{}' exceeds the range of its exact sum; the sum's exponent becomes "
      "coarser",
      r.step, where, r.void_parameter);
}

Results::Results(const JobArguments& arguments, const Prepared& prepared, std::int64_t steps)
    : a_(arguments), prepared_(prepared), config_(prepared.config), mesh_(prepared.mesh),
      costs_from_(prepared.costs_from), layout_costs_from_(prepared.layout_costs_from),
      tokens_per_step_(tokens_per_step(config_)), progress_(clock_, progress_options(arguments.quiet, steps)) {
  set_log_sink([this](std::string_view line) { progress_.log(line); });
}

Status Results::open(const Plan& plan, const Predicted& predicted, std::int64_t first_step, bool continues,
                     const std::string& ahead) {
  // At a later call the files are of this run, which begins again from an older checkpoint.
  const bool again = std::exchange(opened_, true);
  held_.clear();
  evaluating_.clear();
  if (!again) {
    TROUPE_ASSIGN(const std::string aside, set_aside_results(a_.out, continues));
    if (!aside.empty()) note(aside);
  }
  plan_ = &plan;
  first_step_ = first_step;
  progress_.begin_at(first_step);
  predicted_step_s_ = predicted.game.step_s;
  TROUPE_TRY(report::write_file(file("plan.txt"), plan_text(plan, predicted.places, predicted.game) + "\n" +
                                                      costs_text(a_, costs_from_) + ahead));
  if (continues) {
    TROUPE_ASSIGN(auto before, report::read_lines_before(file("metrics.jsonl"), first_step));
    if (!before.damaged.empty())
      log_warn(fmt::format("'{}' has {} that cannot be read, line {} first: the run goes on without {}",
                           file("metrics.jsonl"), counted(std::ssize(before.damaged), "line"), before.damaged.front(),
                           before.damaged.size() == 1 ? "it" : "them"));
    kept_lines_ = std::move(before.lines);
    curve_.train = std::move(before.train);
    curve_.eval = std::move(before.eval);
    if (!curve_.eval.empty()) eval_loss_ = curve_.eval.back().loss;
  } else {
    curve_.train.clear();
    curve_.eval.clear();
    if (again) kept_lines_ = "";  // as an attempt before, which would have gone on from a later step
    else TROUPE_TRY(open_metrics(report::MetricsWriter::Mode::fresh));
  }
  return report::write_run_json(file("run.json"), run_json({}, "running", nullptr));
}

Status Results::open_metrics(report::MetricsWriter::Mode mode) {
  auto writer = report::MetricsWriter::open(file("metrics.jsonl"), mode);
  if (!writer.ok()) return writer.status();
  metrics_ = std::make_unique<report::MetricsWriter>(*std::move(writer));
  return {};
}

void Results::begun(std::uint64_t job, std::uint32_t generation) {
  job_ = job;
  generation_ = generation;
  keep(report::write_run_json(file("run.json"), run_json({}, "running", nullptr)));
}

void Results::ready() {
  if (const auto lines = std::exchange(kept_lines_, std::nullopt)) {
    // Not before the workers are ready: a run whose workers cannot restore a checkpoint leaves the lines as they were.
    Status s = report::write_file(file("metrics.jsonl"), *lines);
    if (s.ok()) s = open_metrics(report::MetricsWriter::Mode::append);
    keep(s);
  }
  last_ns_ = clock_.now_ns();
}

template <class Metrics>
void Results::write_metrics(const Metrics& metrics) {
  if (metrics_) keep(metrics_->write(metrics));  // else it could not be opened, and the run ends
}

void Results::keep(const Status& s) {
  if (write_error_.ok() && !s.ok()) write_error_ = s;
}

namespace {

/// What the loaders of a step have loaded.
std::optional<std::pair<std::int64_t, std::int64_t>> samples_of(const std::vector<runtime::Report>& reports) {
  std::optional<std::pair<std::int64_t, std::int64_t>> all;
  for (const auto& r : reports) {
    if (r.name != "samples" || r.values.size() != 2) continue;
    const auto first = static_cast<std::int64_t>(r.values[0]), count = static_cast<std::int64_t>(r.values[1]);
    if (all && all->second != first) return std::nullopt;
    all = {all ? all->first : first, first + count};
  }
  return all;
}

}  // namespace

void Results::step(const StepResult& r) {
  const auto now = event_ns();
  const double ms = static_cast<double>(now - last_ns_) * 1e-6;
  last_ns_ = now;
  report::StepMetrics m;
  m.step = r.step;
  m.loss = r.loss;
  m.grad_norm = r.grad_norm;
  m.lr = r.lr;
  m.tokens = (r.step + 1) * tokens_per_step_;
  m.samples = samples_of(r.reports);
  m.step_ms = ms;
  m.tokens_per_s = static_cast<double>(tokens_per_step_) / (ms * 1e-3);
  // Time of the step less the mean of its workers' computing: waiting for peers and for the commit.
  m.exposed_comm_ms = plan_->workers() > 1 ? std::max(0.0, ms - static_cast<double>(r.busy_ns) * 1e-6) : 0;
  m.generation = event_generation();
  if (r.void_step) m.grad_norm = std::nan(""), ++void_steps_;
  m.void_parameter = r.void_parameter;
  m.void_microbatch = r.void_microbatch;
  if (r.void_step) log_warn(void_step_text(r));
  // An evaluation of version v runs beside step v and may end after it. Its line comes first, on any machine.
  held_.push_back(m);
  write_held();
  curve_.train.push_back({static_cast<double>(r.step), r.loss});
  progress_.step(r.step, r.loss, m.tokens_per_s);
  last_loss_ = r.loss;
  step_ms_.push_back(ms);
  if (now >= next_current_ns_) write_current(r.step + 1);
}

void Results::write_current(std::int64_t steps) {
  if (leads_ && !leads_()) return void(next_current_ns_ = clock_.now_ns() + 1'000'000'000);
  if (metrics_) keep(metrics_->in_place());
  JobResult so_far;
  so_far.committed_steps = steps;
  keep(report::write_run_json(file("run.json"), run_json(so_far, "running", nullptr), Durability::not_synced));
  keep(write_curve(steps, Durability::not_synced));
  const auto end_ns = clock_.now_ns();
  constexpr std::int64_t pause_ns = 10'000'000'000;
  // steps wait while these are written
  next_current_ns_ = end_ns + std::max(pause_ns, 200 * (end_ns - last_ns_));
}

void Results::evaluated(std::int64_t step, const std::vector<Report>& reports) {
  double sum = 0;  // microbatches in index order: the same bits on any mesh
  for (const auto& r : reports) sum += r.values.at(0);
  report::EvalMetrics m;
  m.step = step;
  m.tokens = config_.eval.batches * config_.schedule.microbatch * config_.model.seq;
  m.eval_loss = sum / static_cast<double>(m.tokens);
  m.eval_ms = static_cast<double>(event_ns() - last_ns_) * 1e-6;
  m.generation = event_generation();
  write_metrics(m);
  evaluating_.erase(step);
  write_held();
  curve_.eval.push_back({static_cast<double>(step), m.eval_loss});
  progress_.evaluated(step, m.eval_loss);
  eval_loss_ = m.eval_loss;
}

Status Results::evaluation() const {
  if (curve_.eval.empty() || std::isfinite(eval_loss_)) return {};
  return invalid(fmt::format("the evaluation loss after step {} is not finite: training has diverged",
                             static_cast<std::int64_t>(curve_.eval.back().step)));
}

void Results::checkpoint(const CheckpointEvent& e) {
  using Kind = CheckpointEvent::Kind;
  const std::string of = fmt::format("checkpoint of step {}", e.step);
  report::CheckpointMetrics m;
  m.step = e.step;
  m.parameter_bytes = e.parameter_bytes;
  m.moment_bytes = e.moment_bytes;
  m.stall_ms = e.stall_s * 1e3;
  m.save_ms = e.save_s * 1e3;
  m.generation = generation_;
  if (e.kind == Kind::saving) saving_step_ = e.step;
  if (e.kind == Kind::saving || saving_step_ == e.step)
    progress_.show_beside(e.kind != Kind::saving ? ""
                                                 : fmt::format("saving {}: {} of parameters, {} of moments, stall {}",
                                                               e.step, human_bytes(e.parameter_bytes),
                                                               human_bytes(e.moment_bytes), human_seconds(e.stall_s)));
  switch (e.kind) {
    case Kind::saving: m.what = "saving"; break;
    case Kind::committed:
      m.what = "saved";
      saved_step_ = e.step;
      ++saved_;
      if (!e.status.ok()) log_warn(of + ": older ones could not be removed: " + e.status.message());
      break;
    case Kind::failed:
      m.what = "failed";
      m.why = e.status.message();
      ++failed_;
      log_warn(fmt::format("{} failed ({} in a row): {}", of, e.failures, m.why));
      break;
    case Kind::skipped:
      m.what = "skipped";
      if (skipped_++ == 0)
        log_warn(of + " is skipped: the disk does not keep up; training goes on, checkpoints come less often");
      break;
    case Kind::interrupted: m.what = "interrupted"; break;
  }
  write_metrics(m);
}

void Results::incident(const Incident& i) {
  report::IncidentMetrics m;
  const auto end = std::min(i.cause.find('\n'), i.cause.find("; its last log lines:"));
  m.cause = i.cause.substr(0, end);
  if (end < i.cause.size()) m.report = i.cause.substr(i.cause.find_first_not_of("; \n", end));
  m.planned = i.planned;
  m.actor = i.actor;
  m.culprit = i.culprit;
  m.lost.assign(i.lost.begin(), i.lost.end());
  m.committed = i.committed;
  const bool ended = i.act_ns < 0;
  m.step = ended ? -1 : i.version;
  m.ends = i.ends;
  m.from = i.from.empty() ? "initial values" : i.from;
  m.generation = i.generation;
  m.mesh = i.shape;
  m.others = i.others;
  m.moved_bytes = i.moved_bytes;
  m.at_s = static_cast<double>(i.down_ns - begin_ns_) * 1e-9;
  const auto ms = [](std::int64_t from, std::int64_t to) {
    return from < 0 || to < from ? -1 : static_cast<double>(to - from) * 1e-6;
  };
  if (i.lost.size() > 1) m.more_lost_ms = ms(i.down_ns, i.last_down_ns);
  m.left_ms = ms(i.last_down_ns, i.left_ns);
  m.agreed_ms = ms(i.left_ns, i.agreed_ns);
  m.ready_ms = ms(i.agreed_ns, i.ready_ns);
  m.act_ms = ms(i.ready_ns, i.act_ns);
  if (!i.planned) ++incidents_;
  if (auto* const lines = incident_lines()) keep(lines->write(m));
  if (ended) return;
  curve_.marks.push_back({static_cast<double>(i.version), fmt::format("generation {}", i.generation), m.cause});
  if (!i.shape.empty()) mesh_at_end_ = i.shape;
  generation_ = i.generation;
  const std::int64_t back = std::max<std::int64_t>(0, i.committed - i.version);
  if (!i.ends) repeated_steps_ += back;
  const auto text = i.ends ? fmt::format("{}; the run ends with step {} ({}){}", m.cause, i.version, m.from,
                                         back > 0 ? ", and gives up " + counted(back, "step") + " behind it" : "")
                           : fmt::format("{}; the run goes on from step {} ({}), as generation {}{}, after {:.0f} ms",
                                         m.cause, i.version, m.from, i.generation,
                                         i.shape.empty() ? "" : " on " + i.shape, ms(i.down_ns, i.act_ns));
  if (i.planned && i.lost.empty()) log_info(text);
  else log_warn(text);
}

void Results::straggler(const Straggler& s) {
  report::StragglerMetrics m;
  m.worker = s.place;
  m.times = s.times;
  m.step = s.step;
  m.over = s.over;
  m.at_s = static_cast<double>(clock_.now_ns() - begin_ns_) * 1e-9;
  if (auto* const lines = incident_lines()) keep(lines->write(m));
}

report::MetricsWriter* Results::incident_lines() {
  if (!incident_lines_) {
    auto writer = report::MetricsWriter::open(file("incidents.jsonl"), report::MetricsWriter::Mode::append);
    if (!writer.ok()) return keep(writer.status()), nullptr;
    incident_lines_ = std::make_unique<report::MetricsWriter>(*std::move(writer));
  }
  return incident_lines_.get();
}

void Results::write_held() {
  while (!held_.empty() && (evaluating_.empty() || held_.front().step < *evaluating_.begin())) {
    write_metrics(held_.front());
    held_.pop_front();
  }
}

Status Results::write_files(const JobResult& result, const Status& status, const std::string& sample) {
  evaluating_.clear();  // evaluations of a run that failed do not end
  write_held();
  // First: where there is no room for the other files, run.json must not say that the run goes on.
  TROUPE_TRY(write_record(result, status, sample));
  const Status others = write_others(result, status, sample);
  // Nor that the run has finished: its exit code is the error's.
  if (status.ok() && !others.ok()) (void)write_record(result, others, sample);
  return others;
}

Status Results::write_record(const JobResult& result, const Status& status, const std::string& sample) {
  // The first line; with what it announces, the last lines of a log.
  std::string text = status.ok() ? "finished" : status.message();
  if (const auto end = text.find('\n'); end != std::string::npos && end > 0 && text[end - 1] != ':') text.resize(end);
  return report::write_run_json(file("run.json"), run_json(result, text, a_.sample && status.ok() ? &sample : nullptr));
}

Status Results::write_others(const JobResult& result, const Status& status, const std::string& sample) {
  TROUPE_TRY(write_curve(result.committed_steps, Durability::synced));
  if (a_.sample && status.ok()) TROUPE_TRY(report::write_file(file("sample.txt"), sample));
  return a_.trace.steps > 0 ? write_trace(result) : Status{};
}

Status Results::write_curve(std::int64_t steps, Durability durability) {
  curve_.title = a_.config_path + " on " + to_string(mesh_);
  curve_.subtitle = report::count_text(static_cast<double>(parameter_count(config_.model))) + " parameters, " +
                    report::count_text(static_cast<double>(steps * tokens_per_step_)) + " tokens";
  return report::write_loss_svg(file("loss.svg"), curve_, durability);
}

std::string Results::run_json(const JobResult& result, const std::string& status, const std::string* sample) const {
  nlohmann::json run;
  run["config"] = nlohmann::json::parse(to_json(config_));
  run["mesh"] = to_string(mesh_);
  if (!mesh_at_end_.empty()) run["mesh_at_end"] = mesh_at_end_;
  run["costs"] = costs_from_;
  if (!a_.throttle.empty()) run["throttle"] = a_.throttle;
  if (a_.paced > 0) run["paced"] = a_.paced;  // nothing was computed
  if (a_.device != "cpu") run["device"] = a_.device;
  run["pin"] = a_.pin;
  if (plan_) {
    run["ahead"] = plan_->pipeline.ahead;  // what schedule.ahead = auto has chosen
    run["weights_apart"] = plan_->pipeline.weights_apart;
  }
  run["layout_costs"] = layout_costs_from_;  // on tp layouts decide bits
  run["versions"] = {
      {"troupe", TROUPE_VERSION}, {"caf", TROUPE_CAF_VERSION}, {"ucx", TROUPE_UCX_VERSION}, {"compiler", __VERSION__}};
  run["steps"] = result.committed_steps;
  run["parameters"] = parameter_count(config_.model);
  run["params_hash"] = result.params_hash;
  run["void_steps"] = void_steps_;
  if (incidents_ > 0) run["incidents"] = {{"count", incidents_}, {"repeated_steps", repeated_steps_}};
  run["status"] = status;
  if (!a_.run_number.empty()) run["run"] = a_.run_number;
  if (plan_ && !prepared_.machines.empty() && config_.run.recovery != "off")
    write_decisions(run, decisions_of(a_, prepared_, *plan_));
  if (job_ != 0) run["job"] = checkpoint::hexadecimal(job_);
  write_data(run, absolute(a_.data));
  if (saved_ + skipped_ + failed_ > 0) {
    const auto newest = saved_ > 0 ? nlohmann::json(saved_step_) : nlohmann::json();
    run["checkpoints"] = {{"saved", saved_}, {"skipped", skipped_}, {"failed", failed_}, {"newest", newest}};
  }
  if (first_step_ > 0) run["resumed_at"] = first_step_;
  if (last_loss_) run["loss"] = *last_loss_;
  if (!curve_.eval.empty()) run["eval_loss"] = eval_loss_;
  for (Rank r = 0; r < static_cast<Rank>(result.places.size()); ++r) {
    const auto local = local_plan(*plan_, r);
    const auto& place = result.places[r];
    run["workers"].push_back({{"rank", r},
                              {"stage", plan_->stage_of(r)},
                              {"planned_bytes", local.ok() ? local->pool_bytes : 0},
                              {"peak_bytes", place.peak_bytes},
                              {"file_bytes", place.file_bytes},
                              {"shared_bytes", place.shared_bytes},
                              {"sent_bytes", place.sent_bytes},
                              {"received_bytes", place.received_bytes},
                              {"arena_bytes", local.ok() ? local->arena_bytes : 0},
                              {"copies_bytes", local.ok() ? local->copies_bytes : 0},
                              {"restored_bytes", place.restored_bytes},
                              {"restore_s", place.restore_s}});
  }
  if (sample) run["sample"] = *sample;
  return run.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

namespace {

/// What the job was in while its workers did what their spans say.
std::vector<TraceSpan> incident_spans(const JobResult& result, std::int64_t begin_ns) {
  std::vector<TraceSpan> spans;
  const auto add = [&](const char* row, const std::string& name, std::int64_t from_ns, std::int64_t to_ns,
                       std::int64_t step) {
    TraceSpan span;
    span.row = row;
    span.name = name;
    span.begin_ns = from_ns;
    span.end_ns = to_ns;
    span.step = step;
    span.microbatch = -1;
    spans.push_back(std::move(span));
  };
  std::string before = "the first generation";
  std::int64_t since_ns = begin_ns;
  for (const Incident& i : result.incidents) {
    add("generations", before, since_ns, i.down_ns, i.committed);
    if (i.act_ns < 0) return spans;
    add("incidents", i.first_line(), i.down_ns, i.act_ns, i.version);
    before = fmt::format("generation {}{}", i.generation, i.shape.empty() ? "" : " on " + i.shape);
    since_ns = i.act_ns;
  }
  std::int64_t end_ns = since_ns;
  for (const auto& place : result.places)
    for (const TraceSpan& s : place.spans) end_ns = std::max(end_ns, s.end_ns);
  if (!spans.empty() && end_ns > since_ns) add("generations", before, since_ns, end_ns, result.committed_steps);
  return spans;
}

}  // namespace

Status Results::write_trace(const JobResult& result) const {
  auto writer = report::TraceJsonWriter::open(file("trace.json"), begin_ns_);
  if (!writer.ok()) return writer.status();
  for (Rank r = 0; r < static_cast<Rank>(result.places.size()); ++r) {
    const auto& place = result.places[r];
    const auto dropped = place.dropped_spans > 0 ? fmt::format(" ({} spans dropped)", place.dropped_spans) : "";
    writer->name_worker(r, fmt::format("worker {}: stage {}{}", r, plan_->stage_of(r), dropped));
    writer->add(r, place.spans);
  }
  const auto job = static_cast<int>(result.places.size());
  if (const auto spans = incident_spans(result, begin_ns_); !spans.empty()) {
    writer->name_worker(job, "the job: generations and incidents");
    writer->add(job, spans);
  }
  return writer->close();
}

void Results::print_summary(const JobResult& result, const std::string& sample) const {
  if (a_.quiet) return;
  std::string text;
  const auto add = [&text]<class... T>(fmt::format_string<T...> form, T&&... values) {
    fmt::format_to(std::back_inserter(text), form, std::forward<T>(values)...);
  };
  if (a_.sample) add("\n--- sample ---\n{}\n--------------\n\n", sample);
  add("{} steps on {}", result.committed_steps,
      mesh_at_end_.empty() ? to_string(mesh_) : to_string(mesh_) + ", then " + mesh_at_end_);
  if (last_loss_) add(": loss {:.4f}", *last_loss_);
  else add(": nothing trained");
  if (!curve_.eval.empty()) add(", evaluation loss {:.4f}", eval_loss_);
  if (!step_ms_.empty()) {
    auto sorted = step_ms_;
    std::sort(sorted.begin(), sorted.end());
    const double median = sorted[sorted.size() / 2];
    add(", {:.1f} ms per step (predicted {:.1f}), {} tokens/s", median, predicted_step_s_ * 1e3,
        report::count_text(static_cast<double>(tokens_per_step_) / (median * 1e-3)));
  }
  if (void_steps_ > 0)
    add("\n{} void: see metrics.jsonl", counted(void_steps_, "step") + (void_steps_ == 1 ? " was" : " were"));
  if (saved_ + skipped_ + failed_ > 0) add("\n{} checkpoints saved, {} skipped, {} failed", saved_, skipped_, failed_);
  if (saved_ > 0) add("; the newest is of step {}", saved_step_);
  add("\nparams_hash {}\nmetrics {}, curve {}, plan {}", result.params_hash, file("metrics.jsonl"), file("loss.svg"),
      file("plan.txt"));
  if (a_.trace.steps > 0) {
    add(", trace {} (open it in ui.perfetto.dev or chrome://tracing)", file("trace.json"));
    if (const auto dropped = dropped_spans(result); dropped > 0)
      add("\nthe trace lacks {} spans: a worker keeps {}; trace fewer steps", dropped, TraceRecorder::spans_kept);
  }
  report::print(text + "\n");
}

}  // namespace troupe::lm
