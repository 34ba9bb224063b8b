// Which faults hit a start of a scenario's job, and when: a function of the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/launch/sim_cluster.h"
#include "tests/scenarios/scenario.h"

namespace troupe::scenarios {

struct Fault {
  FaultKind kind = FaultKind::kill;
  std::int64_t at_event = 0;
  Rank place = 0, peer = 0;     ///< of a change: which
  std::int64_t operations = 0;  ///< of the disk, that come before it; disk_full: events until there is room again
};

/// A fault that has found something to disturb.
struct Hit {
  FaultKind kind = FaultKind::kill;
  Rank place = 0, peer = 0;
  std::int64_t at_ns = 0;  ///< in the start; of a fault of the disk: not known
};

/// A number below `below`: one stream of draws for each `what`.
std::int64_t draw_below(std::uint64_t seed, std::uint64_t what, std::int64_t below);

/// The faults of a start of the job, by event. `start`: 0 is the first. `events`: of a start that nothing happens to.
/// One of 16 first starts has none.
std::vector<Fault> draw_faults(const Scenario& scenario, std::uint64_t seed, int start, std::int64_t events);

/// Those that hit places, and requests.
std::vector<Fault> faults_of_job(const std::vector<Fault>& faults);
/// As SimClusterOptions::faults. REQUIRES: each is one of faults_of_job().
std::vector<runtime::SimFault> simulated(const std::vector<Fault>& faults);
/// Those that hit the machine or its disk.
std::vector<Fault> faults_of_disk(const std::vector<Fault>& faults);

/// "kill of place 2 at event 431".
std::string text(const Fault& fault);

}  // namespace troupe::scenarios
