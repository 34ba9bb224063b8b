// Scenario: a simulated job and what may happen to it, as data: one TOML file of tests/scenarios each.
//
//   dp = [2, 1]                # replicas of each pipeline stage
//   replace = false            # a lost place does not come back (default: true)
//   copies = 3                 # the job goes on from copies of every so many steps (default: from slots)
//   [checkpoints]
//   every = 2                  # steps
//   [faults]
//   most = 3                   # of one job; kinds by weight:
//   kill = 4
//   hang = 1
//
// A job on several machines (runtime/launch/sim_machines.h) has `machines` and [machine_faults] instead of [faults];
// with `lease_ms` it has a store, by which another machine takes the place of its process when that is lost.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "devices/base/status.h"
#include "placement/mesh.h"
#include "runtime/launch/sim_machines.h"
#include "runtime/plan/pipeline_schedule.h"
#include "runtime/search/shapes.h"

namespace troupe::scenarios {

/// What may happen to a job.
enum class FaultKind : std::uint8_t {
  kill,         ///< a place's process ends, as by SIGKILL
  crash,        ///< it ends as by SIGSEGV: its memory is suspect
  hang,         ///< it stops, as by SIGSTOP
  cut_off,      ///< no message passes between it and the coordinator any more
  cut,          ///< no message passes between two places any more
  cut_one_way,  ///< no message passes from one place to another any more
  fails,        ///< a place says that its process fails, and the process ends a moment later
  blip,         ///< as cut, for less than a second
  pause,        ///< as hang, for less than the time after which a place counts as silent
  stale_vote,   ///< a place's last vote comes again, of the generation before
  stale_order,  ///< the last order to a place comes again, of the generation before
  change,       ///< the job is asked to go on in another shape
  interrupt,    ///< the job is asked to end
  machine,      ///< the machine stops: coordinator, places and disk
  disk_stop,    ///< the same, before an operation of the disk
  disk_full,    ///< no byte fits on the disk, for a while
  disk_error    ///< one operation of the disk fails
};
inline constexpr std::size_t fault_kinds = static_cast<std::size_t>(FaultKind::disk_error) + 1;

/// The key of a kind in a file: "cut_off".
const char* name_of(FaultKind kind);
/// A place's process is lost by it, or killed for it.
bool takes_place(FaultKind kind);
/// It holds a place or a link up, for less than the time after which the place would be killed for it.
constexpr bool is_short(FaultKind kind) { return kind == FaultKind::blip || kind == FaultKind::pause; }
/// It hits the way between two places.
bool is_of_two(FaultKind kind);
/// It hits the machine, or its disk.
bool is_of_disk(FaultKind kind);

/// What may happen to a job on machines: SimMachineFault::Kind, by the same order.
inline constexpr std::size_t machine_fault_kinds =
    static_cast<std::size_t>(runtime::SimMachineFault::Kind::leader_lost) + 1;
/// The key of a kind in a file: "cut_off".
const char* name_of(runtime::SimMachineFault::Kind kind);
/// It hits the job's store, or the ways to it, or what only a job with a store survives.
bool needs_store(runtime::SimMachineFault::Kind kind);

struct Scenario {
  std::string name;  ///< of the file, without its folder and ".toml"
  runtime::StageWidths dp;
  std::int64_t tp = 1;
  std::int32_t zero = 0;
  runtime::Pipeline pipeline;
  std::int64_t width = 8, hidden = 12, layers = 3;  ///< of the MLP
  std::int64_t steps = 8;
  Rank spares = 0;                            ///< places that have no rank at first
  bool replace = true;                        ///< a lost place gets a new process
  std::int64_t copy_every = 0;                ///< steps between copies; 0: the job goes on from slots
  std::vector<runtime::StageWidths> changes;  ///< shapes in which the job may be asked to go on
  std::int64_t checkpoint_every = 0;          ///< steps; 0: the job saves no checkpoints
  std::int64_t faults_most = 2;
  std::array<std::int64_t, fault_kinds> weights{};  ///< by FaultKind
  std::vector<std::int32_t> machines;  ///< places of each; empty: the job is on one machine, and has `weights`
  std::int64_t nodes = 0;              ///< of these so many have the job; the others wait
  std::int64_t nodes_min = 1;          ///< with which a job goes on that does not replace what it has lost
  std::int64_t lease_ms = 0;           ///< of its leader in the job's store; 0: the job has no store
  std::array<std::int64_t, machine_fault_kinds> machine_weights{};

  std::int64_t weight(FaultKind kind) const { return weights[static_cast<std::size_t>(kind)]; }
  std::int64_t weight(runtime::SimMachineFault::Kind kind) const {
    return machine_weights[static_cast<std::size_t>(kind)];
  }
  std::int64_t ranks() const;
  std::int64_t places() const { return ranks() + spares; }
};

/// Reads one scenario from text; `file` stands for it in messages. Error: names file, line and key, and what is
/// expected there.
Expected<Scenario> parse_scenario(std::string_view text, const std::string& file);

/// Reads all *.toml of a folder, by name. Error: as parse_scenario; the folder cannot be read, or has none.
Expected<std::vector<Scenario>> read_scenarios(const std::string& folder);

}  // namespace troupe::scenarios
