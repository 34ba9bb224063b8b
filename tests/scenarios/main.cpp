// The driver of tests/scenarios: runs seeds of simulated jobs and what happens to them, and checks each.
//
//   test_scenarios --seeds 1:10000                 # all of them, twice each
//   test_scenarios --seed 4711                     # one, with its story
//   test_scenarios --planted no_sync --seeds 1:1000    # until the planted error is found
#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <map>

#include "devices/base/log.h"
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
  return r.failed.empty() ? 0 : 1;
}

/// Whether the planted error is found.
int find_planted(const ScenarioSet& scenarios, BatchOptions options) {
  options.stops_at_first = true;
  options.jobs = 1;  // the first seed that finds it
  options.twice = false;
  const BatchResult r = run_batches(scenarios, options);
  if (r.failed.empty()) {
    fmt::print("planted error '{}': NOT FOUND by seeds {} to {}, {:.1f} s\n", name_of(options.planted), options.first,
               options.last, r.seconds);
    return 1;
  }
  fmt::print("planted error '{}': found by seed {}, {:.1f} s\n{}", name_of(options.planted), r.failed.front(),
             r.seconds, r.first_text);
  return 0;
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
      {"unfenced", Planted::unfenced}, {"no_sync", Planted::no_sync}, {"whole_early", Planted::whole_early}};
  cli.add_option("--seeds", seeds, "FIRST:LAST, each run twice (default: 1:300)")->type_name("FIRST:LAST");
  auto* one = cli.add_option("--seed", seed, "one seed, with its story");
  cli.add_option("--scenario", options.scenario, "only this one (default: the seed decides)");
  cli.add_option("--scenarios", folder, "folder of *.toml (default: tests/scenarios)");
  cli.add_option("--planted", planted,
                 "a planted error, which must be found: unfenced, no_sync, whole_early (repeatable)")
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
  options.first = first;
  options.last = last;
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
