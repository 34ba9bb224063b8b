// SimJob: one simulated job on one machine, or on several as its coordinator sees them: the coordinator tells places
// itself what to do. Internal to sim_cluster.cpp and sim_job.cpp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/launch/sim_processes.h"

namespace troupe::runtime {

class SimJob final : private SimProcesses, private CoordinatorSink {
 public:
  SimJob(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors, SessionOptions session,
         const SimClusterOptions& options);

  SimOutcome run();

 private:
  CoordinatorOptions coordinator_options(SessionOptions session);

  // ---- CoordinatorSink ------------------------------------------------------------------------------

  void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) override;
  Status with_last_log_lines(PlaceId, const Status& status) override { return status; }
  void restart(PlaceId id, JobGeneration of, bool afresh) override;
  void kill(PlaceId place) override { SimProcesses::kill(static_cast<Rank>(place), false); }
  void reshape(const Plan& plan, std::span<const PlaceId> places, JobGeneration of) override;
  void fill(const Plan& plan, std::span<const PlaceId> places, std::span<const PlaceId> newcomers,
            JobGeneration of) override;
  std::string memory_of(PlaceId place) override { return std::to_string(static_cast<Rank>(place)); }
  std::int32_t machine_of(PlaceId place) override {
    return options_.machines.empty() ? 0 : options_.machines[static_cast<std::size_t>(place)];
  }
  void settled(std::span<const PlaceId> used) override;
  void dismiss(PlaceId place) override;

  // ---- SimProcesses ---------------------------------------------------------------------------------

  void heard(Rank from, ControlFrame frame, bool suspicion) override;
  void reaped(Rank r, ProcessEnd end, bool killed) override;
  Buffer* memory_named(const std::string& name, Rank reader) override;
  void cannot_go_on(const Status& why) override { coordinator_.end(why, exit_worker); }
  std::int64_t committed() const override { return coordinator_.committed(); }
  void link(Rank r) override;

  void hello(PlaceId place, JobGeneration of);
  void inject(std::size_t fault);
  /// Whether the fault has found something to disturb.
  bool hits(const SimFault& fault);
  JobGeneration before() const { return {options_.generation.job, options_.generation.number - 1}; }
  void turn();

  const Plan& plan_;  // with which the job begins
  Coordinator coordinator_;
  bool told_down_ = false;  // the coordinator knows of the end of a process
  std::size_t fault_ = 0;   // the next of options_.faults
};

}  // namespace troupe::runtime
