// The results of a run of `troupe train`: metrics.jsonl, the progress line, loss.svg, run.json, trace.json, the
// summary.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>

#include "apps/job/planning.h"
#include "apps/report/files.h"
#include "apps/report/loss_svg.h"
#include "apps/report/metrics.h"
#include "apps/report/output.h"
#include "apps/report/progress.h"
#include "devices/base/log.h"

namespace troupe::lm {

/// The warning about a void step.
std::string void_step_text(const runtime::StepResult& step);

/// Takes the events of a job while it runs; writes and prints when it has ended. While it lives, the log's lines stand
/// beside its progress line. Not thread-safe. REQUIRES: the constructor's arguments outlive this object; its thread
/// alone logs.
class Results {
 public:
  /// The run ends after `steps` steps.
  Results(const JobArguments& arguments, const Prepared& prepared, std::int64_t steps);
  ~Results() { report::log_to_stderr(); }
  Results(const Results&) = delete;

  /// The first call sets the results of an earlier run aside (set_aside_results, with `continues`). Each call writes
  /// run.json and plan.txt, with `ahead` (tried_text) at the end of plan.txt, and begins metrics.jsonl: where the run
  /// goes on, behind its lines of the steps before `first_step`.
  Status open(const runtime::Plan& plan, const Predicted& predicted, std::int64_t first_step, bool continues,
              const std::string& ahead = "");
  /// This run continues the run with number `job`.
  void goes_on(std::uint64_t job) { job_ = job; }
  /// What is written of a run that goes on, beside its lines, is written while this says so: else the files may be
  /// another process's by now. Null: always.
  void writes_while(std::function<bool()> leads) { leads_ = std::move(leads); }
  /// The run has this shape, to which it had come before this process.
  void goes_on_as(const std::string& shape) { mesh_at_end_ = shape; }
  /// The run saves checkpoints, as this job; the generation is in every line of metrics.
  void begun(std::uint64_t job, std::uint32_t generation);
  void checkpoint(const runtime::CheckpointEvent& event);
  void incident(const runtime::Incident& incident);
  void straggler(const runtime::Straggler& straggler);
  /// All workers are ready: the first step's time begins.
  void ready();
  /// The session tells next of an event of this time and generation (SessionOptions::on_event).
  void at(std::int64_t at_ns, std::uint32_t generation) { at_ns_ = at_ns, at_generation_ = generation; }
  void step(const runtime::StepResult& result);
  /// An evaluation of this version has begun: lines of later steps wait for its line.
  void evaluating(std::int64_t version) {
    evaluating_.insert(version);
    progress_.evaluating(version);
  }
  /// The reports of the evaluation of the parameters after `step` steps.
  void evaluated(std::int64_t step, const std::vector<runtime::Report>& reports);
  /// A line of its own beside the progress line.
  void note(const std::string& line) { progress_.note(line); }
  /// Error: the newest evaluation loss is not finite.
  Status evaluation() const;
  /// Whether this run has done a step.
  bool has_steps() const { return !step_ms_.empty(); }
  /// Of the newest checkpoint that this run has saved; -1: none.
  std::int64_t saved_step() const { return saved_step_; }
  /// The first error in writing, if any.
  const Status& write_error() const { return write_error_; }

  void end_progress() { progress_.finish(); }
  Status write_files(const runtime::JobResult& result, const Status& status, const std::string& sample);
  void print_summary(const runtime::JobResult& result, const std::string& sample) const;

 private:
  /// Time and generation of the event that the session tells of.
  std::int64_t event_ns() const { return at_ns_ < 0 ? clock_.now_ns() : at_ns_; }
  std::int64_t event_generation() const { return at_ns_ < 0 ? generation_ : at_generation_; }
  /// Writes the held lines that wait for no evaluation.
  void write_held();
  std::string file(const std::string& name) const { return a_.out + "/" + name; }
  /// `status`: "running", "finished", or why the run failed. `sample`: null where there is none.
  std::string run_json(const runtime::JobResult& result, const std::string& status, const std::string* sample) const;
  /// Writes run.json and the curve as of this step, for readers while the run goes on.
  void write_current(std::int64_t steps);
  /// run.json, in the end.
  Status write_record(const runtime::JobResult& result, const Status& status, const std::string& sample);
  /// All other files of results.
  Status write_others(const runtime::JobResult& result, const Status& status, const std::string& sample);
  Status write_curve(std::int64_t steps, Durability durability);
  Status write_trace(const runtime::JobResult& result) const;
  /// Where lines of incidents.jsonl go; null: it cannot be written, which is kept.
  report::MetricsWriter* incident_lines();
  void keep(const Status& status);
  Status open_metrics(report::MetricsWriter::Mode mode);
  template <class Metrics>
  void write_metrics(const Metrics& metrics);

  const JobArguments& a_;
  const Prepared& prepared_;
  const LmConfig& config_;
  const MeshSpec& mesh_;
  std::function<bool()> leads_;
  std::string mesh_at_end_;  ///< where the run has changed it
  const std::string &costs_from_, &layout_costs_from_;
  const std::int64_t tokens_per_step_;
  SteadyClock clock_;
  report::Progress progress_;
  const runtime::Plan* plan_ = nullptr;
  double predicted_step_s_ = 0;
  bool opened_ = false;
  std::optional<std::string> kept_lines_;                            ///< of the run that goes on, until it begins
  std::unique_ptr<report::MetricsWriter> metrics_, incident_lines_;  ///< the latter from the first incident on
  std::set<std::int64_t> evaluating_;
  std::deque<report::StepMetrics> held_;
  Status write_error_;
  std::int64_t generation_ = 1;
  std::int64_t incidents_ = 0, repeated_steps_ = 0;
  std::uint64_t job_ = 0;  ///< 0: the run neither saves checkpoints nor goes on from any
  std::int64_t first_step_ = 0;
  std::int64_t saved_ = 0, skipped_ = 0, failed_ = 0, saved_step_ = -1, saving_step_ = -1;  ///< checkpoints
  report::LossCurve curve_;
  std::vector<double> step_ms_;
  std::int64_t void_steps_ = 0;
  std::optional<double> last_loss_;  ///< of this run's last step; none: it has trained none
  double eval_loss_ = 0;
  std::int64_t at_ns_ = -1, at_generation_ = 0;
  std::int64_t begin_ns_ = clock_.now_ns(), last_ns_ = 0, next_current_ns_ = 0;
};

}  // namespace troupe::lm
