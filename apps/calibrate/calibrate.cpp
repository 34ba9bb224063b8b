#include "apps/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/calibrate/disk_times.h"
#include "apps/calibrate/kernel_times.h"
#include "apps/calibrate/link_times.h"
#include "apps/job/job.h"
#include "apps/lm/model.h"
#include "apps/report/output.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "devices/cpu/cpu_device.h"
#include "devices/files/file_storage.h"
#include "devices/process/end_signals.h"
#include "runtime/compile/compile.h"

namespace troupe::calibrate {

using namespace runtime;

namespace {

/// The models whose ops are measured: sizes a factor of two apart, between which the cost model interpolates.
struct Size {
  std::int64_t heads, dim, ffn, seq, microbatch;
};
constexpr Size sizes[] = {
    {4, 128, 352, 128, 1},  {4, 128, 352, 128, 4},  {4, 256, 704, 256, 1},    {4, 256, 704, 256, 4},
    {8, 512, 1408, 256, 1}, {8, 512, 1408, 256, 4}, {16, 1024, 2816, 512, 1},
};

/// The kernels of each model on one place, and divided by tp=2.
Expected<std::vector<KernelCase>> all_cases(const App& app, std::int64_t widest) {
  std::vector<KernelCase> cases;
  for (const Size& s : sizes)
    for (std::int64_t tp : {1, 2}) {
      if (s.dim > widest && s.dim > sizes[0].dim) continue;
      lm::LmConfig c;
      c.model = {.vocab = 256,
                 .layers = 2,
                 .heads = s.heads,
                 .kv_heads = s.heads,
                 .dim = s.dim,
                 .head_dim = s.dim / s.heads,
                 .ffn = s.ffn,
                 .seq = s.seq};
      c.schedule = {.steps = 1, .lr = 1e-3, .min_lr = 1e-4, .batch = 2 * s.microbatch, .microbatch = s.microbatch};
      TROUPE_TRY(lm::validate(c));
      CompileOptions o;
      o.stages = stage_meshes({1}, tp);
      TROUPE_ASSIGN(const Plan plan, compile(lm::build_model(c, app.ops(), "corpus", 0), o));
      add_distinct(cases, kernel_cases(plan, app.ops()));
    }
  return cases;
}

/// Adds the best rates, for ops without a measurement.
KernelCosts summary(int workers, std::map<std::string, std::vector<KernelTime>> times) {
  KernelCosts k;
  k.workers = workers;
  k.launch_s = 1;
  for (const auto& [op, list] : times)
    for (const auto& t : list) {
      if (op.starts_with("linear")) k.flops_per_s = std::max(k.flops_per_s, t.flops / t.seconds);
      if (op == "add_into") k.memory_bytes_per_s = std::max(k.memory_bytes_per_s, t.bytes / t.seconds);
      k.launch_s = std::min(k.launch_s, t.seconds);
    }
  k.times = std::move(times);
  return k;
}

/// What ends the calibration before it is done: a signal, or output without a reader. Sets `code`, its exit code.
Status stopped(EndSignals& signals, int& code) {
  code = exit_interrupted;
  TROUPE_TRY(signals.interrupted());
  code = exit_reader_gone;
  return report::reader_gone() ? reader_gone_error() : Status{};
}

/// The disk comes first: it is what may be wrong with the arguments. Error: a folder that is named and cannot be
/// written; an interruption.
Status add_disk(const Arguments& a, MachineCosts& c, EndSignals& signals, int& code) {
  code = exit_output;
  const std::string folder = a.checkpoint_dir.empty() ? "." : a.checkpoint_dir;
  report::print(fmt::format("checkpoints written to '{}' ...\n", folder));
  const SteadyClock clock;
  CpuDevice device(clock);
  FileStorage storage;
  const auto rate = measure_disk(storage, device, clock, folder, [&] { return signals.interrupted(); });
  TROUPE_TRY(stopped(signals, code));
  code = exit_output;
  if (!rate.ok() && !a.checkpoint_dir.empty()) return rate.status();
  if (rate.ok()) c.disk_bytes_per_s = *rate, report::print(fmt::format("  {:.2f} GB/s\n", *rate * 1e-9));
  else
    log_warn("the disk is not measured, name a folder that can be written with --checkpoint-dir: " +
             rate.status().message());
  return {};
}

/// On an error, `code` is the exit code for it.
Expected<MachineCosts> measure(const App& app, const Arguments& a, EndSignals& signals, int& code) {
  MachineCosts c;
  c.machine = this_machine();
  c.threads = a.threads;
  report::print(c.machine + "\n");
  TROUPE_TRY(add_disk(a, c, signals, code));
  // Messages before kernels: a machine that other work keeps busy is refused in seconds, not after minutes.
  code = exit_worker;
  report::print("messages between two workers ...\n");
  TROUPE_ASSIGN(const MessageTimes messages, measure_messages(app, code));
  TROUPE_TRY(stopped(signals, code));
  c.handover_s = messages.handover_s;
  c.intra_node = messages.link;
  report::print(fmt::format("  {:.1f} us, {:.2f} GB/s; {:.1f} us from act to act\n", c.intra_node.latency_s * 1e6,
                            c.intra_node.bytes_per_s * 1e-9, c.handover_s * 1e6));
  code = exit_worker;
  TROUPE_ASSIGN(const auto cases, all_cases(app, a.widest));
  const SteadyClock clock;
  const int workers_max = std::max(1, static_cast<int>(usable_cores().size()) / a.threads);
  for (int workers = 1; workers <= workers_max; workers *= 2) {
    report::print(fmt::format("{} kernels, {} of {} ...\n", cases.size(), counted(workers, "worker"),
                              counted(a.threads, "thread")));
    CpuDevice device(clock);
    auto times = measure_kernels(device, cases, workers, a.threads, [&] { return signals.interrupted(); });
    TROUPE_TRY(stopped(signals, code));
    code = exit_worker;
    TROUPE_TRY(times.status());
    c.kernels.push_back(summary(workers, *std::move(times)));
    const auto& k = c.kernels.back();
    report::print(
        fmt::format("  {:.1f} GFLOP/s, {:.1f} GB/s each\n", k.flops_per_s * 1e-9, k.memory_bytes_per_s * 1e-9));
  }
  return c;
}

}  // namespace

int calibrate_command(const App& app, const Arguments& a) {
  const std::string path = a.costs.empty() ? default_costs_path() : a.costs;
  if (path.empty())
    return lm::say(invalid("neither XDG_CACHE_HOME nor HOME is set: name the file to write with --costs FILE"),
                   exit_usage);
  constexpr int threads_max = 1024;  // as run.threads
  if (a.threads < 1 || a.threads > threads_max)
    return lm::say(invalid(fmt::format("--threads {}: possible are 1 to {}", a.threads, threads_max)), exit_usage);
  EndSignals signals;  // lives longer than the folders: none is left where one comes
  // Before the measurement, which takes minutes.
  const auto folders = prepare_costs(path);
  if (!folders.ok()) return lm::say(folders.status(), exit_output);
  int code = exit_ok;
  const auto measured = measure(app, a, signals, code);
  if (!measured.ok()) return lm::say(measured.status(), code);
  if (const Status s = write_costs(path, *measured); !s.ok()) return lm::say(s, exit_output);
  report::print("costs " + path + "\n");
  return exit_ok;
}

}  // namespace troupe::calibrate
