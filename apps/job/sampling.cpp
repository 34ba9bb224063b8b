#include "apps/job/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/job/planning.h"
#include "apps/job/reading.h"
#include "apps/lm/byte_tokens.h"
#include "apps/lm/sampler.h"
#include "apps/report/output.h"
#include "devices/base/log.h"

namespace troupe::lm {

using namespace runtime;

namespace {

/// Writes the new part of a growing text.
class Printer {
 public:
  explicit Printer(const Sampler& sampler) : sampler_(sampler) {}
  void operator()() {
    const std::string& text = sampler_.text();
    report::print(std::string_view(text).substr(printed_));
    printed_ = text.size();
  }
  void end_line() {
    if (printed_ > 0) report::print("\n");
  }

 private:
  const Sampler& sampler_;
  std::size_t printed_ = 0;
};

/// The model of a checkpoint, on the mesh that is asked for. On an error, `code` is the exit code for it.
Expected<Prepared> prepare(const SampleArguments& a, const ResumePoint& point, int& code) {
  TROUPE_ASSIGN(Prepared p, prepare_saved(point, a.mesh, a.threads, a.costs, code));
  code = exit_usage;
  if (a.tokens >= 0) p.config.sample.tokens = a.tokens;
  if (a.temperature >= 0) p.config.sample.temperature = a.temperature;
  if (a.seed >= 0) p.config.run.seed = a.seed;
  TROUPE_TRY(validate(p.config));
  TROUPE_TRY(check_sampled(p.config, a.text));
  if (p.config.sample.tokens == 0)
    return invalid("'sample.tokens' is 0 in the checkpoint's configuration: say how many with --tokens");
  code = exit_plan;
  TROUPE_TRY(check_mesh(p.mesh, p.config));
  if (*std::max_element(p.mesh.dp.begin(), p.mesh.dp.end()) > 1)
    return invalid("mesh " + to_string(p.mesh) +
                   ": one replica makes a text, the others would do nothing; use pp or tp");
  return p;
}

/// Samples from one checkpoint. Error `damaged`: its data is damaged, and nothing has been written yet.
Status sample_from(const App& app, const SampleArguments& a, const ResumePoint& point, std::set<std::string>& warned,
                   int& code) {
  TROUPE_ASSIGN(const Prepared p, prepare(a, point, code));
  for (const auto& warning : p.warnings)
    if (warned.insert(warning).second) log_warn(warning);
  Sampler sampler(a.text.empty() ? p.config.sample.prompt : a.text);
  code = exit_plan;
  TROUPE_ASSIGN(const Plan plan, make_sample_plan(app, p, sampler.prompt()));

  Printer print(sampler);
  JobOptions options;
  options.threads = static_cast<int>(p.config.run.threads);
  options.checkpoint.restore = point.folder;
  options.on_ready = [&] { print(); };
  options.reader_gone = report::reader_gone;
  SessionOptions& s = options.session;
  s.first_step = point.manifest.stamp.step;
  s.steps = s.first_step + 1;
  s.on_report = [&](const std::string&, const Report& report) {
    sampler.take(report);
    print();
  };
  const auto check_finite = [&] {
    if (sampler.finite()) return Status();
    return invalid("the model of '" + point.folder +
                   "' gives numbers that are not finite: its parameters are not, or are too large; sample from another "
                   "checkpoint");
  };
  options.give_up = check_finite;
  const JobResult result = app.run(plan, std::move(options));
  print.end_line();
  code = exit_diverged;
  if (result.status.code() != Code::damaged) TROUPE_TRY(check_finite());
  code = result.exit_code;
  return result.status;
}

}  // namespace

Status check_sampled(const LmConfig& config, const std::string& prompt) {
  if (config.model.vocab > byte_tokens)
    return invalid(
        fmt::format("'model.vocab' = {}: a sample's tokens are bytes, and those from {} on have no text; models with a "
                    "tokenizer are not sampled yet",
                    config.model.vocab, byte_tokens));
  const auto tokens = encode(prompt.empty() ? config.sample.prompt : prompt);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] >= config.model.vocab)
      return invalid(fmt::format("'model.vocab' = {}: byte {} at offset {} of the text to go on from is no token of it",
                                 config.model.vocab, tokens[i], i));
  return {};
}

int sample_command(const App& app, const SampleArguments& a) {
  std::set<std::string> warned;  // by the look for a checkpoint before
  return use_checkpoint(a.from, -1, [&](const Resume&, const ResumePoint& point, int& code) {
    return sample_from(app, a, point, warned, code);
  });
}

}  // namespace troupe::lm
