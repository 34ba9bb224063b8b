// RunningJob: a job as its own process has it: its machines and places, its coordinator, the changes of its shape; and
// which machines it takes, and with which places. Without clock, thread or socket but for those of its places: the
// process (job.cpp) and a simulation (sim_machines.h) bring it its events.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/launch/gather_machines.h"
#include "runtime/launch/job_places.h"
#include "runtime/launch/shape_changes.h"

namespace troupe::runtime {

/// What the options say to the coordinator, but for what is called or counted in the job's process (on_settled, replan,
/// places_at_once).
CoordinatorOptions coordinator_options(const JobOptions& options, const Plan& plan);

/// Not thread-safe.
class RunningJob {
 public:
  struct Parts {
    JobCheckpoints* checkpoints = nullptr;  ///< null: the job saves none
    ShapePlans* shapes = nullptr;           ///< as for ShapeChanges
    Stream* planning = nullptr;
  };
  /// What is given outlives this object. `log`: as for JobPlaces.
  RunningJob(const Plan& plan, const JobOptions& options, CoordinatorOptions coordinator, const Parts& parts,
             const Clock& clock, std::function<void(PlaceId, const std::string&)> log);

  JobPlaces& places() { return places_; }
  Coordinator& coordinator() { return coordinator_; }
  const Coordinator& coordinator() const { return coordinator_; }
  ShapeChanges& changes() { return changes_; }

  /// The machines with which the job begins (Gathering), with what they have kept of a job before (JobOptions::kept);
  /// `program`: as there. Where they take too few places, a job that goes on for one whose process is lost goes on in
  /// another shape, if it does not replace places. Error: they take too few.
  Status begin_on(std::vector<JoinedAgent> joined, const std::string& program);
  /// The generation with which it begins. `claimed`: of which the number was claimed on a folder; nullopt: the first
  /// one of `job`, or of the job that it goes on for. Its number is greater than `above`.
  JobGeneration first_generation(const std::optional<JobGeneration>& claimed, std::uint64_t job,
                                 std::uint32_t above = 0) const;
  /// Ok where its machines have room for the places with which it begins. Error: some have been lost since begin_on().
  Status check_room() const;
  /// Enters its first generation: starts its places, and tells them plan and rank. Error: a place cannot be started.
  Status start(JobGeneration first, const CheckpointTarget& save);
  /// An agent asks to join.
  void take_joined(JoinedAgent& one);
  /// What has come since the last call, and the time, are decided upon. Returns the answer to ShapeChanges::ask, once.
  /// `heard_ns`: until then links have been read.
  std::optional<std::string> decide(std::int64_t heard_ns);
  /// Brings the coordinator what agents have told.
  void bring() { places_.bring_to(coordinator_, clock_.now_ns()); }

 private:
  void add_machine(JoinedAgent& one, bool late, const std::vector<PlaceId>& back = {});
  void add_gathered(JoinedAgent& one);
  /// Places that must be started as it begins; a job that goes on has the spares for which there is room.
  std::int64_t needed() const;

  const Plan& plan_;
  const JobOptions& options_;
  const Clock& clock_;
  JobPlaces places_;
  Coordinator coordinator_;
  ShapeChanges changes_;
  std::vector<PlaceId> lost_;           // of the job before, with their machines
  Joins first_;                         // of one of the machines with which it has begun
  std::string program_;                 // what tells this executable from another one, of a job that has machines
  std::set<std::string> told_refused_;  // for now, and why; the log has it
};

}  // namespace troupe::runtime
