// The driver of tests/scenarios: runs seeds of simulated jobs and what happens to them, and checks each.
//
//   test_scenarios --seeds 1:10000                 # all of them, twice each
//   test_scenarios --seed 4711                     # one, with its story
//   test_scenarios --machines --seeds 1:2000       # of jobs on machines
//   test_scenarios --planted no_sync --seeds 1:1000    # until the planted error is found
#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "devices/base/log.h"
#include "tests/runtime/draws.h"
#include "tests/scenarios/batches.h"

namespace {

using namespace troupe;
using namespace troupe::scenarios;

/// Runs one seed in this process, and tells its story.
int run_one(const ScenarioSet& scenarios, std::uint64_t seed, const BatchOptions& options) {
  CompiledScenario& scenario = scenarios.of(seed);
  const SeedRun one = run_seed(scenario, seed, options.planted);
  fmt::print("{}digest {:016x}\n", one.story, one.digest);
  std::fflush(stdout);
  Violations violations = one.violations;
  if (run_seed(scenario, seed, options.planted).digest != one.digest)
    violations.push_back("two runs of the seed are not the same");
  for (const auto& v : violations) fmt::print("VIOLATED: {}\n", v);
  return violations.empty() ? 0 : 1;
}

int run_all(const ScenarioSet& scenarios, const BatchOptions& options) {
  const BatchResult r = run_batches(scenarios, options);
  fmt::print("{}{} seeds of {} scenarios, {} each, in {:.1f} s: {:.1f} seeds/s, {:.1f} ms a run; {} violations\n",
             text(r.counts), r.seeds, scenarios.size(), options.twice ? "twice" : "once", r.seconds,
             static_cast<double>(r.seeds) / r.seconds,
             1e3 * r.seconds * options.jobs / static_cast<double>(r.seeds * (options.twice ? 2 : 1)), r.failed.size());
  std::string shortfall;
  if (r.seeds >= seeds_that_meet_all && options.scenario.empty())
    shortfall = shortfall_of(r.counts, r.seeds, scenarios);
  fmt::print("{}", shortfall);
  return r.failed.empty() && shortfall.empty() ? 0 : 1;
}

/// What is said of a seed that has found the planted error: one of these.
std::vector<std::string> signs_of(Planted planted) {
  switch (planted) {
    case Planted::none: return {};
    // An order, a vote or an answer of a generation before was taken.
    case Planted::unfenced:
      return {"the session says ",
              "which is not open there",
              "has loss ",
              "tells of a run that has not begun",
              "a worker cannot be made",
              "ASSERT failed"};
    case Planted::no_sync: return {"was told to be committed", "does not load"};
    // Garbage was trained with.
    case Planted::whole_early: return {"ASSERT failed", "is not finite", "has loss ", "params_hash is "};
    case Planted::claims_newer: return {"of which this place holds no ", "has loss ", "params_hash is "};
    case Planted::joins_twice: return {"has two agents"};
    case Planted::two_leaders: return {"has two leaders"};
    case Planted::compares_not: return {"to two leaders", "has two leaders"};
    case Planted::enters_unclaimed: return {"has two leaders"};
  }
  return {};
}

/// Looks for the first seed that shows the planted error, and only that: without it the seed is clean.
int find_planted(const ScenarioSet& scenarios, BatchOptions options) {
  options.stops_at_first = true;
  options.jobs = 1;  // the first seed that finds it
  options.twice = false;
  const char* name = name_of(options.planted);
  const std::vector<std::string> signs = signs_of(options.planted);
  const std::uint64_t from = options.first;
  double seconds = 0;
  int others = 0;
  while (options.first <= options.last) {
    const BatchResult r = run_batches(scenarios, options);
    seconds += r.seconds;
    if (r.failed.empty()) break;
    const std::uint64_t seed = r.failed.front();
    options.first = seed + 1;
    const bool shows = std::any_of(signs.begin(), signs.end(), [&](const std::string& sign) {
      return r.first_text.find(sign) != std::string::npos;
    });
    if (!shows) {
      ++others;
      continue;
    }
    fmt::print("planted error '{}': found by seed {}, {:.1f} s; {} seeds before it failed otherwise\n{}", name, seed,
               seconds, others, r.first_text);
    std::fflush(stdout);
    BatchOptions without = options;
    without.planted = Planted::none;
    without.first = without.last = seed;
    if (run_batches(scenarios, without).failed.empty()) return 0;
    fmt::print("planted error '{}': seed {} fails without it, too\n", name, seed);
    return 1;
  }
  fmt::print("planted error '{}': NOT FOUND by seeds {} to {}, {:.1f} s; {} seeds failed otherwise\n", name, from,
             options.last, seconds, others);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App cli("Runs simulated jobs and what happens to them, by seeds, and checks each against the undisturbed job.");
  BatchOptions options;
  std::string seeds = "1:300", folder = TROUPE_SOURCE_DIR "/tests/scenarios";
  std::uint64_t seed = 0;
  std::vector<Planted> planted;
  bool debug = false;
  const std::map<std::string, Planted> names = {
      {"unfenced", Planted::unfenced},         {"no_sync", Planted::no_sync},
      {"whole_early", Planted::whole_early},   {"claims_newer", Planted::claims_newer},
      {"joins_twice", Planted::joins_twice},   {"two_leaders", Planted::two_leaders},
      {"compares_not", Planted::compares_not}, {"enters_unclaimed", Planted::enters_unclaimed}};
  cli.add_option("--seeds", seeds, "FIRST:LAST, each run twice (default: 1:300); TROUPE_ONE_IN=N runs one in N")
      ->type_name("FIRST:LAST");
  auto* one = cli.add_option("--seed", seed, "one seed, with its story");
  cli.add_option("--scenario", options.scenario, "only this one (default: the seed decides)");
  cli.add_flag("--machines", options.of_machines, "jobs on machines (tests/scenarios/machines)");
  cli.add_option("--scenarios", folder, "folder of *.toml (default: tests/scenarios)");
  cli.add_option("--planted", planted,
                 "a planted error, which must be found: unfenced, no_sync, whole_early; with --machines "
                 "claims_newer, joins_twice, two_leaders, compares_not, enters_unclaimed (repeatable)")
      ->transform(CLI::CheckedTransformer(names))
      ->allow_extra_args(false);
  cli.add_option("--jobs", options.jobs, "processes at a time (default: 2)")->check(CLI::Range(1, 256));
  cli.add_flag("--debug", debug, "the log of the job, with --seed");
  try {
    cli.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return cli.exit(e) == 0 ? 0 : 2;
  }
  unsigned long long first = 0, last = 0;
  int end = 0;
  if (std::sscanf(seeds.c_str(), "%llu:%llu%n", &first, &last, &end) != 2 || seeds[static_cast<std::size_t>(end)] ||
      last < first) {
    fmt::print(stderr, "--seeds {}: expected FIRST:LAST, such as 1:300\n", seeds);
    return 2;
  }
  for (const Planted p : planted)
    if ((flaw_of(p) != runtime::SimMachinesFlaw::none) != options.of_machines) {
      fmt::print(stderr, "--planted: jobs {} have no such error (--help)\n",
                 options.of_machines ? "on machines" : "without --machines");
      return 2;
    }
  if (options.of_machines) folder += "/machines";
  options.first = first;
  // Planted errors are looked for until they are found.
  options.last = planted.empty() ? first + (last - first) / test::one_in() : last;
  set_log_level(debug ? LogLevel::debug : LogLevel::off);
  const auto scenarios = ScenarioSet::load(folder, options.scenario);
  if (!scenarios.ok()) {
    fmt::print(stderr, "{}\n", scenarios.status().message());
    return 2;
  }
  if (one->count() > 0) {
    if (!planted.empty()) options.planted = planted.front();
    return run_one(*scenarios, seed, options);
  }
  if (planted.empty()) return run_all(*scenarios, options);
  int missed = 0;
  for (const Planted p : planted) {
    options.planted = p;
    missed += find_planted(*scenarios, options);
  }
  return missed > 0 ? 1 : 0;
}
