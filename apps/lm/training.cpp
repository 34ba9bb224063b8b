#include "apps/lm/training.h"

#include <iterator>
#include <sstream>

#include "apps/lm/data.h"
#include "apps/lm/learning_rate.h"
#include "apps/lm/text_file.h"
#include "apps/report/files.h"

namespace troupe::lm {

using namespace runtime;

namespace {

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

}  // namespace

Training::Training(const App& app, const JobArguments& a, Prepared prepared)
    : app_(app), a_(a), p_(std::move(prepared)), steps_(a.steps >= 0 ? a.steps : p_.config.schedule.steps),
      results_(a, p_, steps_), sampler_(p_.config, a.sample ? a.sample_text : "\n") {}

int Training::run() {
  int code = exit_ok;
  if (const Status s = open(code); !s.ok()) return say(s, code);
  if (const auto warning = mesh_warning(p_.mesh, p_.config); !warning.empty()) results_.note("warning: " + warning);
  JobOptions options = this->options();
  options.checked = true;   // by open()
  const JobResult result = app_.run(plan_, std::move(options));
  results_.end_progress();
  Status s = result.status;
  code = result.exit_code;
  if (s.ok() && !results_.write_error().ok()) s = results_.write_error(), code = exit_output;   // in the last step
  if (const Status w = results_.write_files(result, s, sampler_.text()); s.ok() && !w.ok()) s = w, code = exit_output;
  if (!s.ok()) return say(s, code);
  results_.print_summary(result, sampler_.text());
  return exit_ok;
}

/// Everything that can be refused before a worker starts. On an error, `code` is the exit code for it.
Status Training::open(int& code) {
  code = exit_data;
  if (a_.data.empty()) return invalid("no training text: name one with --data FILE (plain text, .gz or .dz)");
  code = exit_output;
  TROUPE_TRY(report::prepare_output_dir(a_.out));
  code = exit_data;
  TROUPE_ASSIGN(const std::string text, plain_text_path(a_.data, a_.out + "/corpus"));
  TROUPE_ASSIGN(const Corpus corpus, Corpus::open(corpus_options(p_.config, text)));
  code = exit_plan;
  TROUPE_ASSIGN(plan_, make_plan(app_, p_, text, a_.sample));
  TROUPE_TRY(app_.check(plan_, options()));
  TROUPE_ASSIGN(const Predicted predicted, predict(plan_));
  code = exit_output;
  return results_.open(plan_, predicted);
}

bool Training::evaluates_at(std::int64_t version) const {
  const auto every = p_.config.eval.every;
  return every > 0 && version > 0 && (version % every == 0 || version == steps_);
}

JobOptions Training::options() {
  JobOptions o;
  o.threads = static_cast<int>(p_.config.run.threads);
  o.pin = a_.pin;
  o.tls = a_.tls;
  o.net_devices = a_.net_devices;
  for (const auto& prefix : a_.worker_prefixes) o.prefixes.push_back(split_words(prefix));
  o.throttle = p_.throttle;
  o.paced = a_.paced > 0 ? 1 : 0;
  o.run_kernels = a_.paced == 0;
  o.trace = a_.trace;
  o.stall_s = a_.stall_s;
  o.on_ready = [this] { results_.ready(); };
  o.on_log = [this](Rank rank, const std::string& line) { results_.note("worker " + std::to_string(rank) + ": " + line); };
  o.give_up = [this] { return results_.write_error(); };
  SessionOptions& s = o.session;
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
  s.on_started = [this](const std::string& program, std::int64_t version) {
    if (program == "evaluate") results_.evaluating(version);
  };
  s.on_step = [this](const StepResult& r) { results_.step(r); };
  s.on_closed = [this](const std::string& program, std::int64_t step, const std::vector<Report>& reports) {
    if (program == "sample") sampler_.finish(reports);
    else results_.evaluated(step, reports);
  };
  s.feed = [this](const std::string& feed, std::int64_t, std::int32_t m, const Report* last) { return sampler_.feed(feed, m, last); };
  return o;
}

}  // namespace troupe::lm
