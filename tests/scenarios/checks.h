// What must hold of every start of a simulated job, whatever has happened to it. The oracle is the undisturbed job of
// one place (CompiledScenario::undisturbed).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "devices/sim/sim_storage.h"
#include "tests/scenarios/compiled_scenario.h"
#include "tests/scenarios/faults.h"

namespace troupe::scenarios {

/// One start of a job: the first, or one that resumes it.
struct Start {
  int number = 0;
  std::int64_t first = 0;  ///< the version that it begins with
  std::uint32_t generation = 0;
  std::vector<Fault> faults;
  std::vector<Hit> hits;  ///< of the faults that have found something to disturb
  Told told;
  runtime::SimOutcome out;
  bool machine_stopped = false;
  std::int64_t saved = 0;  ///< the newest version that was told to be committed; 0: none
};

/// How a start may end.
enum class Ending : std::uint8_t {
  finished,
  machine_stopped,
  interrupted,    ///< it was asked to end
  gave_up,        ///< CR-4 (giving up), after three incidents without a commit between them
  disk,           ///< of a full or failing disk
  not_begun,      ///< a place has said that its process fails, or the disk failed, before all places were ready once
  no_place_left,  ///< after a change to fewer places, all of which are gone for good
  state_lost,     ///< of machines: no memory has a version with which to go on, and there is no checkpoint
  wrong           ///< for no reason that it had
};
const char* name_of(Ending ending);

/// Collects what was violated, a sentence each.
using Violations = std::vector<std::string>;

/// How the start has ended. Adds a violation where it should not have ended so.
Ending check_ending(const CompiledScenario& c, const Start& start, Violations& violations);
/// Each step and evaluation is told once, in order, and is bitwise that of the undisturbed job; what was told to begin
/// has closed; generations never go back.
void check_told(const CompiledScenario& c, const Start& start, Ending ending, Violations& violations);
/// Each incident has closed; generations grow; the job goes on from the memory of its places where no memory was
/// suspect, from no version before one that was told, and then repeats one step at most.
void check_incidents(const CompiledScenario& c, const Start& start, Ending ending, Violations& violations);

/// Each place that was lost had been hit by a fault that takes places, or was slow to leave; no fault counts twice; a
/// cut link that holds the job up is named.
void check_losses(const Start& start, Violations& violations);

/// A checkpoint to resume from.
struct Newest {
  std::string path;
  checkpoint::Manifest manifest;
};
/// Every checkpoint with a manifest loads, each byte of it, and the newest is no older than `saved`. Returns the newest
/// that loads; nullopt: none does.
std::optional<Newest> check_disk(SimStorage& disk, const std::string& folder, std::int64_t saved,
                                 Violations& violations);

}  // namespace troupe::scenarios
