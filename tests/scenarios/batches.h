// Batches: runs of many seeds in processes of their own, so that a failed check ends one seed and not the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/scenarios/seed_run.h"

namespace troupe::scenarios {

struct BatchOptions {
  std::uint64_t first = 1, last = 1;  ///< seeds
  int jobs = 2;                       ///< processes at a time
  std::string scenario;               ///< the name of the only one; empty: the seed decides
  bool of_machines = false;           ///< the scenarios are those of jobs on machines
  Planted planted = Planted::none;
  bool stops_at_first = false;  ///< at the first seed that fails
  bool twice = true;            ///< runs each seed twice, and compares what has happened
};

struct BatchResult {
  Counts counts;
  std::int64_t seeds = 0;             ///< that were run
  std::vector<std::uint64_t> failed;  ///< in the order in which they were found
  std::string first_text;             ///< what was said of failed[0]
  double seconds = 0;
};

/// "unfenced"; "" of none.
const char* name_of(Planted planted);

/// The scenarios of a run, compiled; the seed decides which one it runs.
class ScenarioSet {
 public:
  /// Error: of a file, or a scenario that does not compile. `only`: the name of the only one; empty: all.
  static Expected<ScenarioSet> load(const std::string& folder, const std::string& only);
  CompiledScenario& of(std::uint64_t seed) const;
  std::size_t size() const { return all_.size(); }
  /// Whether any of them may draw this kind.
  bool draws(FaultKind kind) const;
  bool draws(runtime::SimMachineFault::Kind kind) const;
  /// Whether its jobs are on machines.
  bool has_machines() const;

 private:
  std::vector<std::unique_ptr<CompiledScenario>> all_;
};

/// What the seeds have met too seldom for what they are to find, a line each; empty: nothing. Of all scenarios.
std::string shortfall_of(const Counts& counts, std::int64_t seeds, const ScenarioSet& scenarios);
/// So many seeds meet everything.
inline constexpr std::int64_t seeds_that_meet_all = 300;

/// Runs the seeds. Prints each that fails, with the command that replays it, and progress.
BatchResult run_batches(const ScenarioSet& scenarios, const BatchOptions& options);

/// "tests/scenarios/run.sh --seed 4711".
std::string replay_command(std::uint64_t seed, const BatchOptions& options);

}  // namespace troupe::scenarios
