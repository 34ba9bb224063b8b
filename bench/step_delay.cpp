// What a delay over steps is worth: bench_step_delay [MS [STEPS]]. An actor's model and a learner's, each on a worker
// whose kernels sleep MS (20) milliseconds a step in all (the paced device); the learner reads what the actor has made
// in the same step, or LAG steps before. Each lag in turn, five rounds: medians of a step, and ratios paired by round.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

#include "runtime/compile/compile.h"
#include "runtime/launch/app.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

/// Zeros: no kernel computes with them.
struct Nothing final : actors::UserActor {
  Status act(actors::UserCall&) override { return {}; }
};

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

/// Both models' segments of a step take `model_s` together.
Expected<Plan> pair_of(const App& app, std::int64_t lag, double model_s) {
  Graph g(app.ops());
  g.program("train", {});
  const TensorType type{DType::f32, {8, 8}};
  const auto data = [&](const char* name) { return g.actor("nothing", name, {}, {{name, type}})[0]; };
  g.model("actor");
  Value made = g.op("linear", {data("x"), g.param("seen", {8, 8}, Init::constant(0))})[0];
  g.model("learner");
  if (lag > 0) made = g.step_delay("made", made, lag);
  const Value w = g.param("w", {8, 8}, Init::normal(0.1f));
  g.minimize(g.op("mse_loss", {g.op("linear", {made, w})[0], data("t")}, {})[0], {}, {w});
  TROUPE_ASSIGN(Plan plan, compile(g, {.models = {{"actor", stage_meshes({1})}, {"learner", stage_meshes({1})}}}));
  const auto works = [](const PlanActor& a) {
    return a.kind == PlanActor::Kind::segment && (a.ops.size() != 1 || a.ops[0].op != "keep_microbatch");
  };
  for (PlanRole& role : plan.roles) {
    const auto segments = std::count_if(role.actors.begin(), role.actors.end(), works);
    for (PlanActor& a : role.actors) a.cost_s = works(a) ? model_s / static_cast<double>(segments) : 0;
  }
  return plan;
}

/// Seconds of a step: the median of all but the first three.
Expected<double> seconds(const App& app, std::int64_t lag, double model_s, std::int64_t steps) {
  TROUPE_ASSIGN(const Plan plan, pair_of(app, lag, model_s));
  std::vector<double> took;
  auto before = std::chrono::steady_clock::now();
  JobOptions job;
  job.paced = 1;
  job.run_kernels = false;
  job.session.steps = steps;
  job.session.on_step = [&](const StepResult&) {
    const auto now = std::chrono::steady_clock::now();
    took.push_back(std::chrono::duration<double>(now - std::exchange(before, now)).count());
  };
  TROUPE_TRY(app.run(plan, job).status);
  took.erase(took.begin(), took.begin() + 3);
  return median(took);
}

}  // namespace

int main(int argc, char** argv) {
  App app;
  app.actor<Nothing>("nothing");
  app.serve_if_worker(argc, argv);
  const double model_s = (argc > 1 ? std::atof(argv[1]) : 20) * 1e-3;
  const std::int64_t steps = argc > 2 ? std::atoll(argv[2]) : 40;
  std::map<std::int64_t, std::vector<double>> took, ratios;
  for (int round = 0; round < 5; ++round)
    for (const std::int64_t lag : {0, 1, 4}) {
      const auto s = seconds(app, lag, model_s, steps);
      if (!s.ok()) return fmt::print("lag {}: {}\n", lag, s.status().message()), 1;
      took[lag].push_back(*s);
      ratios[lag].push_back(took[0].back() / *s);
    }
  for (const auto& [lag, all] : took)
    fmt::print("lag {}: {:7.3f} ms a step, {:.3f} times the steps/s of lag 0 ({:.3f} to {:.3f})\n", lag,
               1e3 * median(all), median(ratios[lag]), *std::min_element(ratios[lag].begin(), ratios[lag].end()),
               *std::max_element(ratios[lag].begin(), ratios[lag].end()));
}
