#include "apps/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/calibrate/disk_times.h"
#include "apps/calibrate/kernel_times.h"
#include "apps/calibrate/link_times.h"
#include "apps/calibrate/machine_links.h"
#include "apps/job/job.h"
#include "apps/job/started.h"
#include "apps/lm/model.h"
#include "apps/options/throttle_spec.h"
#include "apps/report/output.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "devices/cpu/cpu_device.h"
#include "devices/files/file_storage.h"
#include "devices/process/end_signals.h"
#include "kernels/processor.h"
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
      TROUPE_ASSIGN(const Plan plan, compile(lm::build_model(c, app.ops(), "corpus"), o));
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

std::string figures_of(const LinkCost& link) {
  return fmt::format("{:.1f} us, {:.4g} GB/s, {:.1f} us more above {} bytes", link.latency_s * 1e6,
                     link.bytes_per_s * 1e-9, link.rendezvous_s * 1e6, LinkCost::eager_bytes);
}

/// Measures links between machines whose agents join as `j` says, and adds them to the file. Returns an exit code.
int measure_between(const App& app, const lm::JobArguments& j, const std::string& path, MachineCosts costs) {
  std::vector<comm::Throttle> throttle;
  for (const auto& text : j.throttle) {
    auto parsed = lm::parse_throttle(text);
    if (!parsed.ok()) return lm::say(parsed.status(), exit_usage);
    throttle.push_back(*std::move(parsed));
  }
  int code = exit_ok;
  EndSignals signals;
  report::print(fmt::format("messages between workers of {} ...\n", counted(j.machines.count, "machine")));
  const auto pairs = std::ssize(pairs_to_measure(j.machines.count));
  const auto all = std::int64_t{j.machines.count} * (j.machines.count - 1) / 2;
  if (pairs < all) report::print(fmt::format("  {} of {} pairs\n", pairs, all));
  const auto links = measure_machine_links(
      app, j.machines, throttle, signals.fd(), code,
      [](const MachineLink& link, double there_per_s, double back_per_s) {
        report::print(fmt::format("  {} and {}: {}", link.a, link.b, figures_of(link.cost)));
        if (std::abs(there_per_s - back_per_s) > odd_share * std::min(there_per_s, back_per_s))
          report::print(fmt::format("; there {:.4g} GB/s, back {:.4g}", there_per_s * 1e-9, back_per_s * 1e-9));
        report::print("\n");
      });
  const int failed = links.status().code() == Code::invalid ? exit_usage : code;
  if (const Status s = stopped(signals, code); !s.ok()) return lm::say(s, code);
  if (!links.ok()) return lm::say(links.status(), failed);
  report::print(fmt::format("  typical: {}; {} from it by more than {:.0f} %\n", figures_of(links->typical),
                            counted(std::ssize(links->odd), "pair") + (links->odd.size() == 1 ? " differs" : " differ"),
                            odd_share * 100));
  costs.inter_node = *links;
  if (const Status s = write_costs(path, costs); !s.ok()) return lm::say(s, exit_output);
  report::print("costs " + path + "\n");
  return exit_ok;
}

/// The same; the file must have this machine's costs already.
int calibrate_between(const App& app, const lm::JobArguments& j, const std::string& path) {
  auto costs = read_costs(path);
  if (!costs.ok())
    return lm::say(Status(costs.status().code(),
                          "links between machines are added to a machine's costs: " + costs.status().message()),
                   exit_usage);
  const auto run = [&](const lm::JobArguments& found) { return measure_between(app, found, path, *costs); };
  return j.hosts.empty() ? run(j) : lm::run_on_hosts(j, run);
}

}  // namespace

int calibrate_command(const App& app, const Arguments& a) {
  const std::string path = a.costs.empty() ? default_costs_path() : a.costs;
  if (path.empty())
    return lm::say(invalid("neither XDG_CACHE_HOME nor HOME is set: name the file to write with --costs FILE"),
                   exit_usage);
  if (const Status s = kernels::check_processor(); !s.ok()) return lm::say(s, exit_usage);
  constexpr int threads_max = 1024;  // as run.threads
  if (a.between.machines.count > 0 || !a.between.hosts.empty()) return calibrate_between(app, a.between, path);
  for (const auto& [option, given] :
       {std::pair("--throttle", !a.between.throttle.empty()), {"--listen", !a.between.machines.listen.empty()}})
    if (given)
      return lm::say(invalid(std::string(option) + " is for links between machines: --nodes or --hosts"), exit_usage);
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
