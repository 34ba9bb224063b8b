#include "apps/job/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "apps/job/argument_checks.h"
#include "apps/job/interruption.h"
#include "apps/job/planning.h"
#include "apps/job/reading.h"
#include "apps/job/run_record.h"
#include "apps/lm/data.h"
#include "apps/lm/model.h"
#include "apps/lm/unpack.h"
#include "apps/report/output.h"
#include "apps/report/progress.h"
#include "devices/base/clock.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"

namespace troupe::lm {

using namespace runtime;

namespace {

/// The text that is evaluated.
struct OpenText {
  std::string name;  ///< as the user or run.json has it
  PlainText plain;
  Corpus corpus;
};

/// What the text that is evaluated depends on: its name, and of a configuration what opening and checking it reads.
using TextKey = std::tuple<std::string, std::int64_t, double, std::int64_t, std::int64_t, std::string>;

TextKey key_of(const std::string& name, const LmConfig& c) {
  return {name, c.model.seq, c.eval.fraction, c.run.seed, c.model.vocab, c.data.fingerprint};
}

/// What one look for a checkpoint leaves to the next: the text, which takes long to unpack, and what has been said.
struct EvaluationState {
  Interruption interruption;
  std::optional<TextKey> key;
  std::optional<OpenText> text;
  std::set<std::string> said;

  void warn(const std::string& warning) {
    if (!warning.empty() && said.insert(warning).second) log_warn(warning);
  }
};

/// The line on a terminal while a text of several steps is evaluated. Elsewhere nothing is printed: stdout has the
/// result, stderr what went wrong.
class EvaluationLine {
 public:
  /// Begins, where stderr is a terminal: `microbatches` in all.
  void begin(std::int64_t microbatches) {
    auto options = report::Progress::options_of(stderr);
    if (!options.terminal) return;
    options.end_step = microbatches;
    options.unit = "microbatch";
    begin_ns_ = clock_.now_ns();
    progress_.emplace(clock_, options);
    set_log_sink([this](std::string_view line) { progress_->log(line); });
  }
  /// So many microbatches are done, of so many tokens, with this loss.
  void show(std::int64_t microbatches, std::int64_t tokens, double loss) {
    const double seconds = static_cast<double>(std::max<std::int64_t>(clock_.now_ns() - begin_ns_, 1)) * 1e-9;
    if (progress_) progress_->step(microbatches - 1, loss, static_cast<double>(tokens) / seconds);
  }
  /// Leaves the cursor on a fresh line.
  void end() {
    if (progress_) report::log_to_stderr();
    progress_.reset();
  }
  ~EvaluationLine() { end(); }
  EvaluationLine() = default;
  EvaluationLine(const EvaluationLine&) = delete;
  EvaluationLine& operator=(const EvaluationLine&) = delete;

 private:
  SteadyClock clock_;
  std::int64_t begin_ns_ = 0;
  std::optional<report::Progress> progress_;
};

/// The microbatches that are evaluated. The last step may have more: they do not count.
struct Division {
  std::int64_t microbatches = 0, steps = 1, tokens = 0;
};

EvaluatedPart evaluated_part(const EvalArguments& a) {
  return a.data.empty() || a.held_out ? EvaluatedPart::held_out : EvaluatedPart::all;
}

/// The model of a checkpoint, on the mesh that is asked for. On an error, `code` is the exit code for it.
Expected<Prepared> prepare(const EvalArguments& a, const ResumePoint& point, int& code) {
  TROUPE_ASSIGN(Prepared p, prepare_saved(point, a.mesh, a.threads, a.costs, code));
  code = exit_usage;
  if (a.batches >= 0) p.config.eval.batches = a.batches;
  TROUPE_TRY(validate(p.config));
  if (evaluated_part(a) == EvaluatedPart::held_out && p.config.eval.fraction == 0)
    return invalid(
        "'eval.fraction' is 0 in the checkpoint's configuration, so no text is held out: name a text "
        "with --data FILE, without --held-out");
  code = exit_plan;
  TROUPE_TRY(check_mesh(p.mesh, p.config));
  return p;
}

/// The name of the text: from the arguments, or from the run that saved the checkpoint. Error: neither is known.
Expected<std::string> name_of_text(const EvalArguments& a, const Resume& checkpoints, const ResumePoint& point) {
  if (!a.data.empty()) return a.data;
  const std::string dir = checkpoints.run_folder();
  const auto run = find_run_record(dir, point.manifest.stamp.job);
  if (run && !run->data.empty()) return run->data;
  if (is_weights_only(point.manifest))
    return invalid("'" + point.folder +
                   "' was imported, so no run has held out a text: evaluate all of any text with --data FILE, or what "
                   "its configuration holds out of one with --data FILE --held-out");
  return invalid("the text of the run that saved '" + point.folder + "' is not known: neither '" + dir +
                 "/run.json' nor one in a folder '" + dir +
                 "/earlier-N' can be read and is of that run; name the text with --data FILE --held-out, or evaluate "
                 "all of any text with --data FILE");
}

/// Error: the part that is held out is asked for of another text than the checkpoint's run had.
Status check_text(const OpenText& text, const LmConfig& config) {
  TROUPE_ASSIGN(const std::string fingerprint, text.corpus.fingerprint());
  const std::string& wanted = config.data.fingerprint;
  if (wanted.empty() || wanted == fingerprint) return {};
  return invalid("data file '" + text.name + "' has fingerprint " + fingerprint +
                 ", and the text of the checkpoint's run has " + wanted +
                 ": it holds out something else; --data FILE without --held-out evaluates all of any text");
}

/// `of_output`: see PlainText::open.
Expected<OpenText> open_corpus(const std::string& name, EvaluatedPart part, const LmConfig& config,
                               const GiveUp& give_up, bool& of_output) {
  TROUPE_ASSIGN(PlainText plain, PlainText::open(name, give_up, &of_output));
  CorpusOptions options = corpus_options(config, plain.path());
  options.evaluates = true;
  options.whole = part == EvaluatedPart::all;
  options.name = name;
  TROUPE_ASSIGN(Corpus corpus, Corpus::open(options, give_up));
  OpenText text{name, std::move(plain), std::move(corpus)};
  if (part == EvaluatedPart::held_out) TROUPE_TRY(check_text(text, config));
  return text;
}

/// Makes `state` have the text open. On an error, `code` is the exit code for it.
Status open_text(const std::string& name, EvaluatedPart part, const LmConfig& config, EvaluationState& state,
                 int& code) {
  const TextKey key = key_of(name, config);
  if (state.text && state.key == key) return {};
  const auto open = [&](const GiveUp& give_up) {
    bool of_output = false;
    auto text = open_corpus(name, part, config, give_up, of_output);
    code = of_output ? exit_output : exit_data;
    return text;
  };
  TROUPE_ASSIGN(OpenText text, state.interruption.during(open, code));
  state.key = key;
  state.text.emplace(std::move(text));
  return {};
}

/// Divides what is evaluated into steps, each of eval.batches microbatches, which it sets.
Division divide(const EvalArguments& a, const Corpus& corpus, LmConfig& config) {
  const std::int64_t batch = config.schedule.microbatch, seq = config.model.seq;
  std::int64_t& each = config.eval.batches;
  const bool whole = evaluated_part(a) == EvaluatedPart::all;
  constexpr std::int64_t step_max = 256;  // of a step the plan and the session have tables
  const auto up = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
  Division d;
  d.microbatches = whole ? up(corpus.text_windows(), batch) : each;
  if (whole && a.batches >= 0) d.microbatches = std::min(d.microbatches, a.batches);
  d.steps = up(d.microbatches, step_max);
  each = up(d.microbatches, d.steps);
  d.tokens = d.microbatches * batch * seq;
  if (whole) d.tokens = std::min(corpus.text_targets(), d.tokens);
  return d;
}

/// The perplexity of a loss above 709 is beyond a double: infinite in the line, null in JSON, which has no such number.
std::string result_text(const EvalArguments& a, const std::string& text, std::int64_t step, std::int64_t tokens,
                        double loss) {
  const bool held_out = evaluated_part(a) == EvaluatedPart::held_out;
  if (!a.json)
    return fmt::format("step {}: evaluation loss {:.4f} nats per token, perplexity {:.6g}, {} {} '{}'\n", step, loss,
                       std::exp(loss), counted(tokens, "token"), held_out ? "held out of" : "of", text);
  nlohmann::ordered_json line;
  line["step"] = step;
  line["eval_loss"] = loss;
  line["perplexity"] = std::exp(loss);
  line["tokens"] = tokens;
  line["data"] = text;
  line["held_out"] = held_out;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// Evaluates one checkpoint. Error `damaged`: its data is damaged, and nothing has been written yet.
Status evaluate(const App& app, const EvalArguments& a, const Resume& checkpoints, const ResumePoint& point,
                EvaluationState& state, int& code) {
  TROUPE_ASSIGN(Prepared p, prepare(a, point, code));
  code = exit_data;
  TROUPE_ASSIGN(const std::string name, name_of_text(a, checkpoints, point));
  const Status opened = open_text(name, evaluated_part(a), p.config, state, code);
  if (!opened.ok() && code == exit_data && a.data.empty())
    return opened.in("the text of the checkpoint's run (or name it with --data FILE --held-out)");
  TROUPE_TRY(opened);
  const OpenText& text = *state.text;
  for (const auto& warning : p.warnings) state.warn(warning);
  state.warn(tokens_warning(p.config));
  const Division division = divide(a, text.corpus, p.config);
  const std::int64_t first = point.manifest.stamp.step, each = p.config.eval.batches;
  code = exit_plan;
  TROUPE_ASSIGN(const Plan plan, make_evaluation_plan(app, p, text.plain.path(), evaluated_part(a), first));
  if (evaluated_part(a) == EvaluatedPart::held_out && a.batches >= 0)
    state.warn(windows_warning("--batches {}", a.batches, text.corpus, p.config));

  Status changed;  // the text, since it was opened here
  double sum = 0;  // microbatches in index order, as in a training run: the same bits on any mesh
  JobOptions options;
  options.threads = static_cast<int>(p.config.run.threads);
  options.checkpoint.restore = point.folder;
  EvaluationLine line;
  options.on_ready = [&] {
    changed = text.corpus.in_place();  // the workers have opened it, too
    if (division.steps > 1) line.begin(division.microbatches);
  };
  options.give_up = [&] { return changed; };
  options.session.first_step = first;
  options.session.steps = first + division.steps;
  options.session.on_closed = [&](const std::string&, std::int64_t step, const std::vector<Report>& reports) {
    for (const Report& r : reports)
      if ((step - first) * each + r.microbatch < division.microbatches) sum += r.values.at(0);
    const std::int64_t done = std::min((step - first + 1) * each, division.microbatches);
    const std::int64_t tokens = std::min(done * p.config.schedule.microbatch * p.config.model.seq, division.tokens);
    line.show(done, tokens, sum / static_cast<double>(tokens));
  };
  const JobResult result = app.run(plan, std::move(options));
  line.end();
  code = result.exit_code;
  // what the reading actor has failed with
  if (changed.ok() && code == exit_worker) changed = text.corpus.unchanged();
  if (!result.status.ok() && !changed.ok()) {
    code = exit_data;
    return changed;
  }
  TROUPE_TRY(result.status);
  const double loss = sum / static_cast<double>(division.tokens);
  if (!std::isfinite(loss)) {
    code = exit_diverged;
    return invalid("the evaluation loss of '" + point.folder +
                   "' is not finite: its parameters are not, or are too large; evaluate another checkpoint");
  }
  report::print(result_text(a, name, first, division.tokens, loss));
  return {};
}

}  // namespace

int eval_command(const App& app, const EvalArguments& a) {
  EvaluationState state;
  return use_checkpoint(a.from, a.step, [&](const Resume& checkpoints, const ResumePoint& point, int& code) {
    return evaluate(app, a, checkpoints, point, state, code);
  });
}

}  // namespace troupe::lm
