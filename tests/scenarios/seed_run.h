// One run of a seed: a scenario's job from its first step to its last, resumed wherever its machine stops.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/scenarios/checks.h"
#include "tests/scenarios/compiled_scenario.h"
#include "tests/scenarios/planted.h"

namespace troupe::scenarios {

/// What has happened, counted over runs. Trivially copyable: processes share it.
struct Counts {
  std::int64_t runs = 0, events = 0, incidents = 0, planned = 0, reshaped = 0;
  std::int64_t from_memory = 0, from_checkpoint = 0, from_initial = 0, repeated_steps = 0;
  std::int64_t begun_again = 0;                    ///< jobs that had finished, from their newest checkpoint
  std::array<std::int64_t, fault_kinds> faults{};  ///< drawn, by FaultKind
  std::array<std::int64_t, fault_kinds> hits{};    ///< of these: that have found something to disturb
  std::array<std::int64_t, 9> endings{};           ///< of starts, by Ending
  std::int64_t slowest_virtual_ns = 0;             ///< of a start
  // Of jobs on machines:
  std::int64_t processes_lost = 0, processes_superseded = 0;       ///< of the job; the second: that lived when replaced
  std::array<std::int64_t, machine_fault_kinds> machine_faults{};  ///< drawn, by SimMachineFault::Kind
  std::array<std::int64_t, machine_fault_kinds> machine_hits{};
  void add(const Counts& other);
};
/// Several lines for people.
std::string text(const Counts& counts);

struct SeedRun {
  Violations violations;
  std::uint64_t digest = 0;  ///< of all that has happened in all starts
  Counts counts;
  std::string story;  ///< for people: faults, incidents and the end of each start
};

/// Runs the scenario's job with what the seed draws. `planted`: an error that the checks must find.
SeedRun run_seed(CompiledScenario& scenario, std::uint64_t seed, Planted planted);

}  // namespace troupe::scenarios
