#include "apps/lm/job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/lm/byte_tokens.h"
#include "apps/lm/data.h"
#include "apps/lm/learning_rate.h"
#include "apps/lm/model.h"
#include "apps/lm/text_file.h"
#include "apps/report/files.h"
#include "apps/report/loss_svg.h"
#include "apps/report/metrics.h"
#include "apps/report/progress.h"
#include "apps/report/trace_json.h"
#include "runtime/compile.h"
#include "runtime/plan_text.h"
#include "runtime/token_game.h"
#include "runtime/verify.h"

namespace troupe::lm {

namespace {

using namespace runtime;

int say(const Status& status, int code) {
  std::fprintf(stderr, "troupe: %s\n", status.message().c_str());
  return code;
}

struct Prepared {
  LmConfig config;
  MeshSpec mesh;
};

/// Configuration and mesh, checked together.
Expected<Prepared> prepare(const JobArguments& a, int& code) {
  code = exit_usage;
  Prepared p;
  TROUPE_ASSIGN(p.config, load_config(a.config_path, a.overrides));
  if (!a.mesh.empty()) {
    TROUPE_ASSIGN(const MeshSpec mesh, parse_mesh(a.mesh));
    p.config.mesh = mesh_config(mesh);
  }
  if (a.threads >= 0) p.config.run.threads = a.threads;
  TROUPE_TRY(validate(p.config));
  if (a.sample && p.config.sample.tokens == 0) return invalid("--sample with 'sample.tokens' = 0 asks for an empty text");
  code = exit_plan;
  TROUPE_ASSIGN(p.mesh, mesh_of(p.config.mesh));
  if (p.mesh.tp > 1)
    return invalid("tp=" + std::to_string(p.mesh.tp) + ": tensor parallelism is not in this version; use tp=1 and dp or pp instead");
  TROUPE_TRY(check_mesh(p.mesh, p.config));
  return p;
}

Expected<Plan> make_plan(const App& app, const Prepared& p, const std::string& text, bool sample) {
  CompileOptions o;
  o.stages = stage_meshes(p.mesh.dp, p.mesh.tp);
  o.lanes = static_cast<std::int32_t>(p.config.schedule.lanes);
  o.seed = static_cast<std::uint64_t>(p.config.run.seed);
  return compile(build_model(p.config, app.ops(), text, sample), o);
}

std::int64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  std::int64_t kib = 0;
  while (in >> key >> kib >> unit)
    if (key == "MemAvailable:") return kib << 10;
  return 0;
}

struct Predicted {
  GameResult game;
  std::vector<LocalPlan> places;
};

/// Verifies the plan with all its programs, then times a training step by itself.
Expected<Predicted> predict(const Plan& plan) {
  Predicted out;
  TROUPE_TRY(verify(plan));
  GameOptions training;
  training.every_program = false;
  TROUPE_ASSIGN(out.game, play(plan, training));
  for (Rank r : out.game.places) {
    TROUPE_ASSIGN(LocalPlan local, local_plan(plan, r));
    out.places.push_back(std::move(local));
  }
  return out;
}

/// All workers of this machine together must fit in its memory.
Status check_memory(const Plan& plan) {
  std::int64_t total = 0;
  for (Rank r = 0; r < plan.workers(); ++r) {
    TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, r));
    total += local.pool_bytes;
  }
  const std::int64_t have = available_memory();
  if (have > 0 && total > have)
    return Status(Code::exhausted, "the plan needs " + std::to_string(total >> 20) + " MiB for its " + std::to_string(plan.workers()) +
                                       " workers and this machine has " + std::to_string(have >> 20) +
                                       " MiB available: use a smaller model, schedule.microbatch or schedule.lanes");
  return {};
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

/// One run of `troupe train`: its files, its progress line, its session.
class Training {
 public:
  Training(const App& app, const JobArguments& a, Prepared p)
      : app_(app), a_(a), p_(std::move(p)),
        steps_(a.steps >= 0 ? a.steps : p_.config.schedule.steps),
        progress_(clock_, {a.quiet ? nullptr_file() : stdout, isatty(fileno(stdout)) != 0 && !a.quiet, 0, steps_, 100, 2000}),
        sampler_(p_.config, a.sample ? a.sample_text : "\n") {}

  int run() {
    int code = exit_ok;
    if (const Status s = open(code); !s.ok()) return say(s, code);
    if (const auto warning = mesh_warning(p_.mesh, p_.config); !warning.empty()) progress_.note("warning: " + warning);
    JobResult result = app_.run(plan_, options());
    progress_.finish();
    Status s = result.status;
    code = result.exit_code;
    if (s.ok() && !write_error_.ok()) s = write_error_, code = exit_output;   // in the last step
    if (const Status w = write_results(result, s); s.ok() && !w.ok()) s = w, code = exit_output;
    if (!s.ok()) return say(s, code);
    summary(result);
    return exit_ok;
  }

 private:
  static std::FILE* nullptr_file() {
    static std::FILE* null = std::fopen("/dev/null", "w");
    return null;
  }

  std::string file(const std::string& name) const { return a_.out + "/" + name; }

  Status open(int& code) {
    code = exit_data;
    if (a_.data.empty()) return invalid("no training text: name one with --data FILE (plain text, .gz or .dz)");
    code = exit_output;
    TROUPE_TRY(report::prepare_output_dir(a_.out));
    code = exit_data;
    TROUPE_ASSIGN(text_, plain_text_path(a_.data, file("corpus")));
    TROUPE_ASSIGN(const Corpus corpus, Corpus::open(corpus_options(p_.config, text_)));
    code = exit_plan;
    TROUPE_ASSIGN(plan_, make_plan(app_, p_, text_, a_.sample));
    TROUPE_TRY(check_memory(plan_));
    TROUPE_ASSIGN(predicted_, predict(plan_));
    code = exit_output;
    TROUPE_TRY(report::write_file(file("plan.txt"), plan_text(plan_, predicted_.places, predicted_.game)));
    auto writer = report::MetricsWriter::open(file("metrics.jsonl"));
    if (!writer.ok()) return writer.status();
    metrics_ = std::make_unique<report::MetricsWriter>(*std::move(writer));
    return {};
  }

  bool evaluates_at(std::int64_t version) const {
    const auto every = p_.config.eval.every;
    return every > 0 && version > 0 && (version % every == 0 || version == steps_);
  }

  JobOptions options() {
    JobOptions o;
    o.threads = static_cast<int>(p_.config.run.threads);
    o.tls = a_.tls;
    o.net_devices = a_.net_devices;
    for (const auto& prefix : a_.worker_prefixes) o.prefixes.push_back(split_words(prefix));
    o.trace = a_.trace;
    o.stall_s = a_.stall_s;
    o.on_ready = [this] { last_ns_ = clock_.now_ns(); };
    o.on_log = [this](Rank rank, const std::string& line) { progress_.note("worker " + std::to_string(rank) + ": " + line); };
    o.give_up = [this] { return write_error_; };
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
    s.on_step = [this](const StepResult& r) { on_step(r); };
    s.on_closed = [this](const std::string& program, std::int64_t step, const std::vector<Report>& reports) {
      if (program == "sample") sampler_.finish(reports);
      else on_eval(step, reports);
    };
    s.feed = [this](const std::string& feed, std::int64_t, std::int32_t m, const Report* last) { return sampler_.feed(feed, m, last); };
    return o;
  }

  void keep(const Status& s) {
    if (write_error_.ok() && !s.ok()) write_error_ = s;
  }

  void on_step(const StepResult& r) {
    const auto now = clock_.now_ns();
    const double ms = static_cast<double>(now - last_ns_) * 1e-6;
    last_ns_ = now;
    report::StepMetrics m;
    m.step = r.step;
    m.loss = r.loss;
    m.grad_norm = r.grad_norm;
    m.lr = r.lr;
    m.tokens = (r.step + 1) * tokens_per_step(p_.config);
    m.step_ms = ms;
    m.tokens_per_s = static_cast<double>(tokens_per_step(p_.config)) / (ms * 1e-3);
    // What a step takes beyond the mean of its workers' computing: waiting for peers and for the commit.
    m.exposed_comm_ms = plan_.workers() > 1 ? std::max(0.0, ms - static_cast<double>(r.busy_ns) * 1e-6) : 0;
    m.generation = 1;
    keep(metrics_->write(m));
    curve_.train.push_back({static_cast<double>(r.step), r.loss});
    progress_.step(r.step, r.loss, m.tokens_per_s);
    last_loss_ = r.loss;
    step_ms_.push_back(ms);
  }

  void on_eval(std::int64_t step, const std::vector<Report>& reports) {
    double sum = 0;   // microbatches in index order: the same bits on any mesh
    for (const auto& r : reports) sum += r.values.at(0);
    report::EvalMetrics m;
    m.step = step;
    m.tokens = p_.config.eval.batches * p_.config.schedule.microbatch * p_.config.model.seq;
    m.eval_loss = sum / static_cast<double>(m.tokens);
    m.eval_ms = static_cast<double>(clock_.now_ns() - last_ns_) * 1e-6;
    m.generation = 1;
    keep(metrics_->write(m));
    curve_.eval.push_back({static_cast<double>(step), m.eval_loss});
    progress_.evaluated(step, m.eval_loss);
    eval_loss_ = m.eval_loss;
  }

  Status write_results(const JobResult& result, const Status& status) {
    curve_.title = a_.config_path + " on " + to_string(p_.mesh);
    curve_.subtitle = report::count_text(static_cast<double>(parameter_count(p_.config.model))) + " parameters, " +
                      report::count_text(static_cast<double>(result.committed_steps * tokens_per_step(p_.config))) + " tokens";
    TROUPE_TRY(report::write_loss_svg(file("loss.svg"), curve_));
    nlohmann::json run;
    run["config"] = nlohmann::json::parse(to_json(p_.config));
    run["mesh"] = to_string(p_.mesh);
    run["versions"] = {{"troupe", TROUPE_VERSION}, {"caf", TROUPE_CAF_VERSION}, {"ucx", TROUPE_UCX_VERSION}, {"compiler", __VERSION__}};
    run["steps"] = result.committed_steps;
    run["parameters"] = parameter_count(p_.config.model);
    run["params_hash"] = result.params_hash;
    run["status"] = status.ok() ? "finished" : status.message();
    if (!curve_.train.empty()) run["loss"] = last_loss_;
    if (!curve_.eval.empty()) run["eval_loss"] = eval_loss_;
    for (Rank r = 0; r < plan_.workers(); ++r) {
      auto local = local_plan(plan_, r);
      const auto& place = result.places[r];
      run["workers"].push_back({{"rank", r}, {"stage", plan_.stage_of(r)}, {"planned_bytes", local.ok() ? local->pool_bytes : 0},
                                {"peak_bytes", place.peak_bytes}, {"sent_bytes", place.sent_bytes}, {"received_bytes", place.received_bytes}});
    }
    if (a_.sample && status.ok()) run["sample"] = sampler_text();
    TROUPE_TRY(report::write_run_json(file("run.json"), run.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
    if (a_.sample && status.ok()) TROUPE_TRY(report::write_file(file("sample.txt"), sampler_.text()));
    if (a_.trace && status.ok()) {
      auto writer = report::TraceJsonWriter::open(file("trace.json"), begin_ns_);
      if (!writer.ok()) return writer.status();
      for (Rank r = 0; r < plan_.workers(); ++r) {
        writer->name_worker(r, "worker " + std::to_string(r) + ": stage " + std::to_string(plan_.stage_of(r)));
        writer->add(r, result.spans[r]);
      }
      TROUPE_TRY(writer->close());
    }
    return {};
  }

  std::string sampler_text() const { return sampler_.text(); }

  void summary(const JobResult& result) {
    if (a_.quiet) return;
    if (a_.sample) std::printf("\n--- sample ---\n%s\n--------------\n\n", sampler_.text().c_str());
    std::printf("%lld steps on %s", static_cast<long long>(result.committed_steps), to_string(p_.mesh).c_str());
    if (curve_.train.empty()) std::printf(": nothing trained");
    else std::printf(": loss %.4f", last_loss_);
    if (!curve_.eval.empty()) std::printf(", evaluation loss %.4f", eval_loss_);
    if (!step_ms_.empty()) {
      auto sorted = step_ms_;
      std::sort(sorted.begin(), sorted.end());
      const double median = sorted[sorted.size() / 2];
      std::printf(", %.1f ms per step (predicted %.1f), %s tokens/s", median, predicted_.game.step_s * 1e3,
                  report::count_text(static_cast<double>(tokens_per_step(p_.config)) / (median * 1e-3)).c_str());
    }
    std::printf("\nparams_hash %s\nmetrics %s, curve %s, plan %s%s%s\n", result.params_hash.c_str(), file("metrics.jsonl").c_str(),
                file("loss.svg").c_str(), file("plan.txt").c_str(), a_.trace ? ", trace " : "",
                a_.trace ? (file("trace.json") + " (open it in ui.perfetto.dev or chrome://tracing)").c_str() : "");
  }

  const App& app_;
  const JobArguments& a_;
  Prepared p_;
  SteadyClock clock_;
  std::int64_t steps_;
  report::Progress progress_;
  Sampler sampler_;
  std::string text_;
  Plan plan_;
  Predicted predicted_;
  std::unique_ptr<report::MetricsWriter> metrics_;
  report::LossCurve curve_;
  Status write_error_;
  std::int64_t begin_ns_ = clock_.now_ns(), last_ns_ = 0;
  double last_loss_ = 0, eval_loss_ = 0;
  std::vector<double> step_ms_;
};

}  // namespace

int train_command(const App& app, const JobArguments& a) {
  int code = exit_ok;
  auto p = prepare(a, code);
  if (!p.ok()) return say(p.status(), code);
  return Training(app, a, *std::move(p)).run();
}

int plan_command(const App& app, const JobArguments& a) {
  int code = exit_ok;
  auto p = prepare(a, code);
  if (!p.ok()) return say(p.status(), code);
  auto plan = make_plan(app, *p, a.data, a.sample);
  if (!plan.ok()) return say(plan.status(), exit_plan);
  auto predicted = predict(*plan);
  if (!predicted.ok()) return say(predicted.status(), exit_plan);
  std::fputs(plan_text(*plan, predicted->places, predicted->game).c_str(), stdout);
  if (!a.dot.empty())
    if (const Status s = report::write_file(a.dot, plan_dot(*plan)); !s.ok()) return say(s, exit_output);
  return exit_ok;
}

int sim_command(const App& app, const JobArguments& a) {
  int code = exit_ok;
  auto p = prepare(a, code);
  if (!p.ok()) return say(p.status(), code);
  auto plan = make_plan(app, *p, a.data, false);
  if (!plan.ok()) return say(plan.status(), exit_plan);
  GameOptions options;
  options.every_program = false;
  options.hop_s = a.hop_ms * 1e-3;
  if (a.tf_ms >= 0 || a.tb_ms >= 0) {
    options.forward_s = std::max(0.0, a.tf_ms) * 1e-3;
    options.backward_s = (a.tb_ms >= 0 ? a.tb_ms : 2 * a.tf_ms) * 1e-3;
  }
  auto game = play(*plan, options);
  if (!game.ok()) return say(game.status(), exit_plan);
  std::fputs(game_text(*plan, *game).c_str(), stdout);
  return exit_ok;
}

}  // namespace troupe::lm
