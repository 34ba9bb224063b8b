// One run of a seed of a scenario with machines (runtime/launch/sim_machines.h), and what must hold of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/scenarios/seed_run.h"

namespace troupe::scenarios {

/// The faults of a run, by event. `events`: of a run that nothing happens to. One of 16 has none.
std::vector<runtime::SimMachineFault> draw_machine_faults(const Scenario& scenario, std::uint64_t seed,
                                                          std::int64_t events);

/// What a run of a job on machines has told and come to.
struct MachinesRun {
  std::vector<runtime::SimMachineFault> faults;
  Told told;  ///< the lines that are written at its end; a process that begins again drops those it repeats
  std::vector<Told> told_before;  ///< by processes before the last one, which may have lived on
  runtime::SimMachinesOutcome out;
};

/// How it has ended. Adds what was violated: each line is there once and bitwise that of the undisturbed job;
/// generations grow and have one leader, with a store the one to which it was given; where memory survives, the job
/// goes on from it and repeats one step at most; it ends within a time that its faults explain.
Ending check_machines(const CompiledScenario& c, const MachinesRun& run, Violations& violations);

/// As run_seed, of a scenario with machines.
SeedRun run_machine_seed(CompiledScenario& scenario, std::uint64_t seed, Planted planted);

}  // namespace troupe::scenarios
