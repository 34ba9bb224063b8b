// CompiledScenario: the plans of a scenario, each compiled once, and what its job tells where nothing happens: that of
// the plan of one replica and one stage, whose arithmetic owes nothing to dp, pp, ZeRO, schedules or recovery.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/launch/sim_cluster.h"
#include "tests/scenarios/scenario.h"

namespace troupe::scenarios {

/// What an application hears of one start of a job.
struct Told {
  std::vector<runtime::StepResult> steps;
  /// By version, in the order in which they were told: the values of all places, sorted.
  std::vector<std::pair<std::int64_t, std::vector<double>>> evaluations;
  std::vector<std::pair<std::string, std::int64_t>> started;     ///< programs and versions
  std::vector<std::pair<std::int64_t, std::uint32_t>> happened;  ///< time and generation of each event
};

/// What every undisturbed job of a scenario tells.
struct Undisturbed {
  std::map<std::int64_t, std::vector<double>> evaluations;  ///< by version
  std::vector<runtime::StepResult> steps;
  std::string params_hash;
};

/// The options of a start of a scenario's job that begins with version `first`. REQUIRES: `told` outlives the job.
runtime::SessionOptions session_of(const Scenario& scenario, std::int64_t first, Told& told);

class CompiledScenario {
 public:
  /// Error: a plan of the scenario does not compile or verify, or its undisturbed job fails.
  static Expected<std::unique_ptr<CompiledScenario>> create(Scenario scenario);

  const Scenario& scenario() const { return scenario_; }
  const runtime::Plan& plan() const { return plan_; }
  const std::vector<runtime::ChosenPlan>& changes() const { return changes_; }
  const Undisturbed& undisturbed() const { return undisturbed_; }
  /// Events of the scenario's own plan, where nothing happens.
  std::int64_t events() const { return events_; }
  /// The options of a run of the scenario's job on its machines, to which nothing happens.
  runtime::SimMachinesOptions machines();
  /// As JobOptions::replan.
  Expected<runtime::Plan> plan_of(const runtime::StageWidths& dp);
  /// As SimClusterOptions::replan.
  Expected<runtime::ChosenPlan> choose(const runtime::Plan& before, std::int64_t places);

  static const kernels::OpSet& ops();
  static const actors::UserActorSet& user_actors();

 private:
  explicit CompiledScenario(Scenario scenario) : scenario_(std::move(scenario)) {}
  Expected<runtime::Plan> compile(const runtime::StageWidths& dp) const;
  Status run_undisturbed();

  const Scenario scenario_;
  runtime::Plan plan_;
  std::vector<runtime::ChosenPlan> changes_;
  std::map<runtime::StageWidths, runtime::Plan> plans_;
  std::map<std::pair<std::string, std::int64_t>, runtime::ChosenPlan> chosen_;  // by shape before and places
  Undisturbed undisturbed_;
  std::int64_t events_ = 0;
};

}  // namespace troupe::scenarios
