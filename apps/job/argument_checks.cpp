#include "apps/job/argument_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/job/guards.h"
#include "apps/job/sampling.h"
#include "apps/options/recovery.h"
#include "devices/base/text_table.h"
#include "runtime/graph/graph.h"

namespace troupe::lm {

/// The times of passes replace the cost model's together or not at all, and --tw is a part of --tb.
static Status check_pass_times(const JobArguments& a) {
  if (a.tf_ms < 0 && (a.tb_ms >= 0 || a.tw_ms >= 0))
    return invalid(fmt::format("{} without --tf: the cost model's times of passes are replaced together or not at all",
                               a.tb_ms >= 0 ? "--tb" : "--tw"));
  if (a.tw_ms >= 0 && a.tw_ms > a.backward_ms())
    return invalid(fmt::format("--tw {}: weight gradients are a part of the backward time, which is {} ms", a.tw_ms,
                               a.backward_ms()));
  return {};
}

Status check_arguments(const JobArguments& a, const Prepared& p) {
  TROUPE_TRY(check_pass_times(a));
  if (a.paced > 0 && (a.resumes || p.config.checkpoint.every > 0))
    return invalid("--paced computes nothing: there is nothing to save, or to go on from");
  if (p.config.eval.every > 0 && p.config.eval.batches > runtime::microbatches_max)
    return invalid(
        fmt::format("'eval.batches' = {}: an evaluation of a run has at most {} microbatches; troupe eval "
                    "evaluates more of a checkpoint",
                    p.config.eval.batches, runtime::microbatches_max));
  if (a.paced > 0 && a.sample) return invalid("--paced computes nothing: there is nothing to sample from");
  if (a.sample) TROUPE_TRY(check_sampled(p.config, a.sample_text));
  if (a.sample && p.config.sample.tokens == 0)
    return invalid("--sample with 'sample.tokens' = 0 asks for an empty text");
  const std::int64_t workers = p.mesh.workers();
  const std::string job = workers == 1 ? "the job has one worker, rank 0"
                                       : fmt::format("the job has {} workers, ranks 0 to {}", workers, workers - 1);
  for (std::size_t i = 0; i < p.throttle.size(); ++i)
    if (std::max(p.throttle[i].a, p.throttle[i].b) >= workers)
      return invalid(fmt::format("--throttle {}: there is no such link: {}", a.throttle[i], job));
  if (const int nodes = std::max(1, a.machines.count); a.machines.count_min > nodes)
    return invalid(
        fmt::format("--min-nodes {}: the run has {} (--nodes)", a.machines.count_min, counted(nodes, "machine")));
  for (const auto& [option, given] :
       {std::pair{"--net-device", a.net_devices.size()}, std::pair{"--worker-prefix", a.worker_prefixes.size()}})
    if (given > static_cast<std::size_t>(workers))
      return invalid(fmt::format("{} is given {} times, once for each rank: {}", option, given, job));
  return {};
}

std::string windows_warning(const std::string& form, std::int64_t batches, const Corpus& corpus,
                            const LmConfig& config) {
  const std::int64_t batch = config.schedule.microbatch, windows = corpus.eval_windows();
  if (batches <= windows / batch || batches * batch == windows) return "";
  const auto written = [&](std::int64_t n) { return fmt::format(fmt::runtime(form), n); };
  const std::string better = windows >= batch ? "; " + written(windows / batch) + " counts none twice" : "";
  return fmt::format("only {} held out, and {} asks for {}: some count more than once{}",
                     counted(windows, "window") + (windows == 1 ? " is" : " are"), written(batches), batches * batch,
                     better);
}

std::vector<std::string> useless_arguments(const JobArguments& a, const LmConfig& config, std::int64_t first,
                                           std::int64_t steps) {
  std::vector<std::string> out;
  if (config.checkpoint.every == 0) {
    const char* const why = "has no effect: the run saves no checkpoint, see --checkpoint-every";
    if (a.keep >= 0) out.push_back(fmt::format("--keep {} {}", a.keep, why));
    // --resume without a folder looks there
    if (!a.checkpoint_dir.empty() && !a.resumes_latest())
      out.push_back(fmt::format("--checkpoint-dir {} {}", a.checkpoint_dir, why));
  }
  const auto slows = [](const std::string& drill) { return drill.starts_with("SLOW@"); };
  if (config.run.recovery == "off" && !std::all_of(a.inject.begin(), a.inject.end(), slows))
    out.push_back("--inject without --recovery slots or copies:K: the run ends with the worker that the drill hits");
  if (config.run.recovery == "off" && a.replace != JobArguments().replace)
    out.push_back(fmt::format("--replace {} has no effect: see --recovery", a.replace));
  if (config.run.recovery == "off" && !a.store.url.empty())
    out.push_back(
        "--store without --recovery tells agents where the run is, and no more: a leader that is lost is not replaced");
  if (a.grace_s != JobArguments().grace_s && (config.run.recovery == "off" || config.checkpoint.every == 0))
    out.push_back(fmt::format("--grace {} has no effect: see --recovery and --checkpoint-every", a.grace_s));
  if (a.spares > 0 && (config.run.recovery == "off" || a.replace == "always"))
    out.push_back(fmt::format("--spares {} has no effect: it needs --recovery and --replace never", a.spares));
  if (a.machines.count_min > 1 && (config.run.recovery == "off" || a.replace == "always"))
    out.push_back(
        fmt::format("--min-nodes {} has no effect: it needs --recovery and --replace never", a.machines.count_min));
  if (auto text = no_guards(a, config); !text.empty()) out.push_back(std::move(text));
  if (const auto r = parse_recovery(config.run.recovery); r.ok() && r->copy_every >= steps - first && steps > first)
    out.push_back(
        fmt::format("--recovery {}: of {} only the state before the first is copied: a loss takes the run back to it",
                    config.run.recovery, counted(steps - first, "step")));
  if (config.run.recovery == "off" && a.detect_budget_ms != JobArguments().detect_budget_ms)
    out.push_back(fmt::format("--detect-budget {} has no effect: see --recovery", a.detect_budget_ms));
  const TraceWindow& window = a.trace;
  // A program that reads the parameters after N steps counts as step N.
  if (window.steps > 0 && (window.first > steps || window.steps <= first - window.first))
    out.push_back(
        fmt::format("none of the {} from step {} on is run: the run begins with step {} and ends after {}; "
                    "trace.json stays empty",
                    counted(window.steps, "step"), window.first, first, counted(steps, "step")));
  return out;
}

}  // namespace troupe::lm
