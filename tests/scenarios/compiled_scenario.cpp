#include "tests/scenarios/compiled_scenario.h"

#include <algorithm>

#include "devices/sim/sim_storage.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/commits_at_once.h"
#include "tests/runtime/mlp.h"

namespace troupe::scenarios {

using namespace runtime;

namespace {

mlp::Shape_ model_of(const Scenario& s) {
  mlp::Shape_ shape;
  shape.width = s.width;
  shape.hidden = s.hidden;
  shape.layers = s.layers;
  return shape;
}

/// Every so many versions, and the last.
struct CommitsEvery final : CommitsAtOnce {
  CommitsEvery(std::int64_t every, std::int64_t last) : every(every), last(last) {}
  bool wants(std::int64_t version) const override { return version == last || (version > 0 && version % every == 0); }
  void written(std::int64_t, const std::vector<Report>&, const SumState&) override {}
  const std::int64_t every, last;
};

}  // namespace

SessionOptions session_of(const Scenario& scenario, std::int64_t first, Told& told) {
  SessionOptions session;
  session.first_step = first;
  session.steps = scenario.steps;
  session.copy_every = scenario.copy_every;
  session.clip = 0.5;
  session.loss_divisor = 8;
  session.lr = [](std::int64_t step) { return 1e-2 / (1 + 0.1 * static_cast<double>(step)); };
  session.readers = [](std::int64_t version) {
    return version % 2 == 0 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  session.on_event = [&told](std::int64_t at_ns, std::uint32_t generation) {
    told.happened.emplace_back(at_ns, generation);
  };
  session.on_started = [&told](const std::string& program, std::int64_t version) {
    told.started.emplace_back(program, version);
  };
  session.on_step = [&told](const StepResult& r) { told.steps.push_back(r); };
  session.on_closed = [&told](const std::string& program, std::int64_t version, const std::vector<Report>& reports) {
    if (program != "evaluate") return;
    std::vector<double> values;
    for (const Report& r : reports) values.insert(values.end(), r.values.begin(), r.values.end());
    std::sort(values.begin(), values.end());
    told.evaluations.emplace_back(version, std::move(values));
  };
  return session;
}

const kernels::OpSet& CompiledScenario::ops() { return mlp::ops(); }

const actors::UserActorSet& CompiledScenario::user_actors() {
  static const actors::UserActorSet set = mlp::actor_set();
  return set;
}

Expected<Plan> CompiledScenario::compile(const StageWidths& dp) const {
  CompileOptions o;
  o.stages = stage_meshes(dp, scenario_.tp);
  o.zero = scenario_.zero;
  if (dp.size() > 1) o.pipeline = scenario_.pipeline;
  o.seed = 7;
  o.keeps_version = scenario_.copy_every == 0;
  o.keeps_copies = scenario_.copy_every > 0;
  o.snapshots = scenario_.checkpoint_every > 0 ? 2 : 0;
  TROUPE_ASSIGN(Plan plan, runtime::compile(mlp::graph(ops(), model_of(scenario_)), o));
  TROUPE_TRY(verify(plan));
  return plan;
}

Expected<std::unique_ptr<CompiledScenario>> CompiledScenario::create(Scenario scenario) {
  std::unique_ptr<CompiledScenario> c(new CompiledScenario(std::move(scenario)));
  const Scenario& s = c->scenario_;
  TROUPE_ASSIGN(c->plan_, c->compile(s.dp));
  for (const StageWidths& dp : s.changes) {
    TROUPE_ASSIGN(Plan plan, c->compile(dp));
    c->changes_.push_back(
        {std::make_shared<const Plan>(std::move(plan)), shape_text(dp, StageWidths(dp.size(), s.tp)), 0, {}});
  }
  TROUPE_TRY(c->run_undisturbed());
  return c;
}

Status CompiledScenario::run_undisturbed() {
  CompileOptions alone;
  alone.stages = stage_meshes({1}, scenario_.tp);
  alone.seed = 7;
  TROUPE_ASSIGN(const Plan plan, runtime::compile(mlp::graph(ops(), model_of(scenario_)), alone));
  Told told;
  TROUPE_ASSIGN(const SimRun run, run_simulated(plan, ops(), user_actors(), session_of(scenario_, 0, told)));
  undisturbed_ = {{told.evaluations.begin(), told.evaluations.end()}, std::move(told.steps), run.params_hash};

  Told own;
  if (!scenario_.machines.empty()) {
    SimMachinesOptions calm = machines();
    calm.session = [&](std::int64_t first) { return session_of(scenario_, first, own); };
    const SimMachinesOutcome out = simulate_machines(plan_, ops(), user_actors(), calm);
    TROUPE_TRY(out.job.status);
    events_ = out.run.events;
    return {};
  }
  CommitsEvery commits(scenario_.checkpoint_every, scenario_.steps);
  SimClusterOptions cluster;
  cluster.recovers = true;
  cluster.spares = scenario_.spares;
  SimStorage disk;
  if (scenario_.checkpoint_every > 0) {
    TROUPE_TRY(disk.make_dir("checkpoints"));
    cluster.storage = &disk;
    cluster.save = {"checkpoints", 1};
    cluster.snapshots = &commits;
  }
  TROUPE_ASSIGN(const SimRun calm, run_simulated(plan_, ops(), user_actors(), session_of(scenario_, 0, own), cluster));
  events_ = calm.events;
  return {};
}

SimMachinesOptions CompiledScenario::machines() {
  SimMachinesOptions o;
  o.machines = scenario_.machines;
  o.job.machines.count = static_cast<int>(scenario_.nodes);
  o.lease_ms = scenario_.lease_ms;
  o.job.machines.count_min = static_cast<int>(scenario_.nodes_min);
  o.job.identity = scenario_.name;
  o.job.recovers = true;
  o.job.replaces = scenario_.replace;
  if (!scenario_.replace) {
    o.job.replan = [this](const StageWidths& dp) { return plan_of(dp); };
    o.replan = [this](const Plan& before, std::int64_t places) { return choose(before, places); };
  }
  return o;
}

Expected<Plan> CompiledScenario::plan_of(const StageWidths& dp) {
  if (const auto it = plans_.find(dp); it != plans_.end()) return it->second;
  TROUPE_ASSIGN(Plan plan, compile(dp));
  return plans_[dp] = std::move(plan);
}

Expected<ChosenPlan> CompiledScenario::choose(const Plan& before, std::int64_t places) {
  const auto key = std::pair(shape_of(before), places);
  if (const auto it = chosen_.find(key); it != chosen_.end()) return it->second;
  TROUPE_ASSIGN(ChosenPlan chosen, choose_shape(before, places, [this](const StageWidths& dp) { return compile(dp); }));
  return chosen_[key] = chosen;
}

}  // namespace troupe::scenarios
