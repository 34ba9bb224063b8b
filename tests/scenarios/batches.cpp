#include "tests/scenarios/batches.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <new>
#include <thread>

#include "devices/base/check.h"

namespace troupe::scenarios {

namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr std::uint64_t batch_seeds = 100, planted_batch_seeds = 10;
/// A run that takes so long never ends: an ordinary one takes a tenth of a second.
constexpr double stuck_s = 120, planted_stuck_s = 20;
constexpr double tell_s = 10;  // between two lines of progress

double seconds_since(Time then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

/// What a batch's process tells the one that has started it, in memory that both have.
struct Shared {
  std::uint64_t seed = 0;  ///< that runs
  std::int64_t begun = 0;  ///< runs, the one that runs among them
  std::int64_t seeds = 0;  ///< that were run
  Counts counts;
  std::uint64_t failed[batch_seeds] = {};
  std::size_t failures = 0;
};

struct Batch {
  std::uint64_t first = 0, last = 0;
  pid_t pid = -1;
  Shared* shared = nullptr;
  std::FILE* out = nullptr;
  std::int64_t begun = 0;  // that was seen
  Time seen{};
  bool stuck = false;
};

std::string text_of(std::FILE* file) {
  std::string text(static_cast<std::size_t>(std::max(std::ftell(file), 0L)), '\0');
  std::fseek(file, 0, SEEK_END);
  text.resize(static_cast<std::size_t>(std::max(std::ftell(file), 0L)));
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  return text;
}

/// Says what is wrong with a seed, and how to see it again.
void report(std::uint64_t seed, const std::string& scenario, const Violations& violations, const BatchOptions& o) {
  std::string text = fmt::format("seed {} ({}):\n", seed, scenario);
  for (const auto& v : violations) text += "  " + v + "\n";
  text += "  replay: " + replay_command(seed, o) + "\n";
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// In the batch's process.
void run_batch(const ScenarioSet& scenarios, const Batch& batch, const BatchOptions& o) {
  Shared& shared = *batch.shared;
  for (std::uint64_t seed = batch.first; seed <= batch.last; ++seed) {
    CompiledScenario& scenario = scenarios.of(seed);
    shared.seed = seed;
    ++shared.begun;
    SeedRun one = run_seed(scenario, seed, o.planted);
    if (o.twice) {
      ++shared.begun;
      const SeedRun again = run_seed(scenario, seed, o.planted);
      if (again.digest != one.digest) one.violations.push_back("two runs of the seed are not the same");
    }
    shared.counts.add(one.counts);
    ++shared.seeds;
    if (one.violations.empty()) continue;
    report(seed, scenario.scenario().name, one.violations, o);
    shared.failed[shared.failures++] = seed;
    if (o.stops_at_first) return;
  }
}

class Batches {
 public:
  Batches(const ScenarioSet& scenarios, const BatchOptions& options) : scenarios_(scenarios), o_(options) {
    const std::uint64_t size = o_.planted == Planted::none ? batch_seeds : planted_batch_seeds;
    for (std::uint64_t at = o_.first; at <= o_.last; at += size)
      waiting_.push_back({at, std::min(o_.last, at + size - 1)});
  }

  BatchResult run() {
    while (!waiting_.empty() || !running_.empty()) {
      while (!waiting_.empty() && std::ssize(running_) < o_.jobs) start();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      for (std::size_t i = 0; i < running_.size();)
        if (ended(running_[i])) running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        else ++i;
      tell_progress();
      if (o_.stops_at_first && !result_.failed.empty()) break;
    }
    for (Batch& b : running_) {
      ::kill(b.pid, SIGKILL);
      ::waitpid(b.pid, nullptr, 0);
      drop(b);
    }
    result_.seconds = seconds_since(begin_);
    return std::move(result_);
  }

 private:
  void start() {
    Batch b = waiting_.front();
    waiting_.pop_front();
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    b.out = std::tmpfile();
    ASSERT(memory != MAP_FAILED && b.out != nullptr, b.first);
    b.shared = new (memory) Shared;
    b.seen = std::chrono::steady_clock::now();
    std::fflush(stdout);
    b.pid = ::fork();
    ASSERT(b.pid >= 0, b.first);
    if (b.pid == 0) {
      ::dup2(::fileno(b.out), STDOUT_FILENO);
      ::dup2(::fileno(b.out), STDERR_FILENO);
      run_batch(scenarios_, b, o_);
      std::fflush(stdout);
      ::_exit(0);
    }
    running_.push_back(b);
  }

  /// Takes what a batch has come to, if it has ended.
  bool ended(Batch& b) {
    if (b.shared->begun != b.begun) b.begun = b.shared->begun, b.seen = std::chrono::steady_clock::now();
    if (!b.stuck && seconds_since(b.seen) > (o_.planted == Planted::none ? stuck_s : planted_stuck_s)) {
      b.stuck = true;
      ::kill(b.pid, SIGKILL);
    }
    int status = 0;
    if (::waitpid(b.pid, &status, WNOHANG) != b.pid) return false;
    std::string said = text_of(b.out);
    result_.counts.add(b.shared->counts);
    result_.seeds += b.shared->seeds;
    for (std::size_t i = 0; i < b.shared->failures; ++i) result_.failed.push_back(b.shared->failed[i]);
    if (status != 0) {
      const std::uint64_t seed = b.shared->seed;
      ++result_.seeds;
      result_.failed.push_back(seed);
      said += fmt::format("seed {} ({}):\n  {}\n  replay: {}\n", seed, scenarios_.of(seed).scenario().name,
                          b.stuck               ? "the run does not end"
                          : WIFSIGNALED(status) ? fmt::format("the process ended by signal {} ({})", WTERMSIG(status),
                                                              ::strsignal(WTERMSIG(status)))
                                                : fmt::format("the process ended with code {}", WEXITSTATUS(status)),
                          replay_command(seed, o_));
      if (seed < b.last) waiting_.push_front({seed + 1, b.last});
    }
    if (!result_.failed.empty() && result_.first_text.empty()) result_.first_text = said;
    if (o_.planted == Planted::none) std::fputs(said.c_str(), stdout);
    drop(b);
    return true;
  }

  static void drop(Batch& b) {
    std::fclose(b.out);
    ::munmap(b.shared, sizeof(Shared));
  }

  void tell_progress() {
    const double now_s = seconds_since(begin_);
    if (o_.planted != Planted::none || now_s - told_s_ < tell_s) return;
    told_s_ = now_s;
    std::int64_t seeds = result_.seeds;
    for (const Batch& b : running_) seeds += b.shared->seeds;
    fmt::print("{} of {} seeds, {:.1f} seeds/s, {} violations\n", seeds, o_.last - o_.first + 1,
               static_cast<double>(seeds) / now_s, result_.failed.size());
    std::fflush(stdout);
  }

  const ScenarioSet& scenarios_;
  const BatchOptions& o_;
  const Time begin_ = std::chrono::steady_clock::now();
  std::deque<Batch> waiting_;
  std::vector<Batch> running_;
  double told_s_ = 0;
  BatchResult result_;
};

}  // namespace

const char* name_of(Planted planted) {
  switch (planted) {
    case Planted::none: return "";
    case Planted::unfenced: return "unfenced";
    case Planted::no_sync: return "no_sync";
    case Planted::whole_early: return "whole_early";
    case Planted::claims_newer: return "claims_newer";
    case Planted::joins_twice: return "joins_twice";
    case Planted::two_leaders: return "two_leaders";
    case Planted::compares_not: return "compares_not";
    case Planted::enters_unclaimed: return "enters_unclaimed";
  }
  return "";
}

std::string shortfall_of(const Counts& n, std::int64_t seeds, const ScenarioSet& scenarios) {
  std::string text;
  for (std::size_t i = 0; i < fault_kinds; ++i)
    if (n.hits[i] == 0 && scenarios.draws(static_cast<FaultKind>(i)))
      text += fmt::format("no fault '{}' has hit\n", name_of(static_cast<FaultKind>(i)));
  const auto least = [&](const char* what, std::int64_t count, std::int64_t one_of) {
    if (count * one_of < seeds) text += fmt::format("{} {}, and at least 1 for {} seeds is due\n", count, what, one_of);
  };
  if (scenarios.has_machines()) {
    for (std::size_t i = 0; i < machine_fault_kinds; ++i)
      if (n.machine_hits[i] == 0 && scenarios.draws(static_cast<runtime::SimMachineFault::Kind>(i)))
        text += fmt::format("no fault '{}' has hit\n", name_of(static_cast<runtime::SimMachineFault::Kind>(i)));
    least("incidents went on from memory", n.from_memory, 2);
    least("incidents went on in another shape", n.reshaped, 6);
    least("steps were repeated", n.repeated_steps, 20);
    least("processes of a job were lost", n.processes_lost, 5);
    if (scenarios.draws(runtime::SimMachineFault::Kind::leader_cut_off))
      least("processes lived on when another one had taken their place", n.processes_superseded, 300);
    return text;
  }
  least("incidents went on from memory", n.from_memory, 2);
  least("incidents went on from a checkpoint", n.from_checkpoint, 100);
  least("incidents were planned", n.planned, 100);
  least("incidents went on in another shape", n.reshaped, 6);
  least("steps were repeated", n.repeated_steps, 20);
  least("machines stopped", n.endings[static_cast<std::size_t>(Ending::machine_stopped)], 10);
  least("jobs were begun once more", n.begun_again, 5);
  return text;
}

Expected<ScenarioSet> ScenarioSet::load(const std::string& folder, const std::string& only) {
  TROUPE_ASSIGN(std::vector<Scenario> scenarios, read_scenarios(folder));
  ScenarioSet set;
  std::string names;
  for (Scenario& s : scenarios) {
    const std::string name = s.name;
    names += (names.empty() ? "" : ", ") + name;
    if (!only.empty() && name != only) continue;
    auto compiled = CompiledScenario::create(std::move(s));
    if (!compiled.ok()) return compiled.status().in(fmt::format("scenario '{}'", name));
    set.all_.push_back(*std::move(compiled));
  }
  if (set.all_.empty()) return invalid(fmt::format("no scenario is called '{}': expected {}", only, names));
  return set;
}

CompiledScenario& ScenarioSet::of(std::uint64_t seed) const {
  return *all_[static_cast<std::size_t>(draw_below(seed, 1, std::ssize(all_)))];
}

bool ScenarioSet::draws(FaultKind kind) const {
  return std::any_of(all_.begin(), all_.end(), [kind](const auto& c) { return c->scenario().weight(kind) > 0; });
}

bool ScenarioSet::draws(runtime::SimMachineFault::Kind kind) const {
  return std::any_of(all_.begin(), all_.end(), [kind](const auto& c) { return c->scenario().weight(kind) > 0; });
}

BatchResult run_batches(const ScenarioSet& scenarios, const BatchOptions& options) {
  return Batches(scenarios, options).run();
}

bool ScenarioSet::has_machines() const {
  return std::any_of(all_.begin(), all_.end(), [](const auto& c) { return !c->scenario().machines.empty(); });
}

std::string replay_command(std::uint64_t seed, const BatchOptions& o) {
  std::string command = fmt::format("tests/scenarios/run.sh{} --seed {}", o.of_machines ? " --machines" : "", seed);
  if (!o.scenario.empty()) command += " --scenario " + o.scenario;
  if (o.planted != Planted::none) command += fmt::format(" --planted {}", name_of(o.planted));
  return command;
}

}  // namespace troupe::scenarios
