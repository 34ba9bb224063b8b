// What the update of a step costs: bench_updates [SIDE [STEPS]]. One matrix of SIDE x SIDE (2048), one row of data, one
// worker: the step is little else than the gradient of the matrix and its update. Each way to update it in turn, five
// rounds, in this process (App::simulate, one thread): medians, and ratios to AdamW paired by round.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>

#include "runtime/compile/compile.h"
#include "runtime/graph/optimizers.h"
#include "runtime/launch/app.h"
#include "runtime/launch/sim_run.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

struct Ones final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    for (auto& out : call.out) std::fill_n(out.as<float>(), out.size(), 1.0f);
    return {};
  }
};

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

/// Seconds of a step: the median of all but the first two.
Expected<double> seconds(const App& app, std::int64_t side, std::int64_t steps, bool keeps_version,
                         const std::function<void(Graph&, Value)>& update) {
  Graph g(app.ops());
  g.program("train", {});
  const Value x = g.actor("ones", "x", {}, {{"x", {DType::f32, {1, side}}}})[0];
  const Value t = g.actor("ones", "t", {}, {{"t", {DType::f32, {1, side}}}})[0];
  const Value w = g.param("w", {side, side}, Init::normal(0.01f));
  g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], t}, {})[0], {});
  update(g, w);
  CompileOptions options;
  options.keeps_version = keeps_version;
  TROUPE_ASSIGN(const Plan plan, compile(g, options));
  std::vector<double> took;
  auto before = std::chrono::steady_clock::now();
  JobOptions job;
  job.session.steps = steps;
  job.session.on_step = [&](const StepResult&) {
    const auto now = std::chrono::steady_clock::now();
    took.push_back(std::chrono::duration<double>(now - std::exchange(before, now)).count());
  };
  const SimOutcome out = app.simulate(plan, job, 0);
  TROUPE_TRY(out.job.status);
  took.erase(took.begin(), took.begin() + 2);
  return median(took);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t side = argc > 1 ? std::atoll(argv[1]) : 2048, steps = argc > 2 ? std::atoll(argv[2]) : 12;
  App app;
  app.actor<Ones>("ones");
  const std::vector<std::pair<std::string, std::function<void(Graph&, Value)>>> ways = {
      {"AdamW", [](Graph&, Value) {}},
      {"AdamW as an op", [](Graph& g, Value w) { use_adamw(g, w); }},
      {"momentum", [](Graph& g, Value w) { use_momentum(g, w); }},
      {"AdamW, and an average", [](Graph& g, Value w) { keep_average(g, w, 0.99); }},
      {"Muon", [](Graph& g, Value w) { use_muon(g, w); }}};
  for (const bool keeps_version : {false, true}) {
    fmt::print("{}\n", keeps_version ? "two versions (keeps_version)" : "in place");
    std::map<std::string, std::vector<double>> took, ratios;
    for (int round = 0; round < 5; ++round)
      for (const auto& [name, update] : ways) {
        const auto s = seconds(app, side, steps, keeps_version, update);
        if (!s.ok()) return fmt::print("{}: {}\n", name, s.status().message()), 1;
        took[name].push_back(*s);
        ratios[name].push_back(*s / took["AdamW"].back());
      }
    for (const auto& [name, update] : ways)
      fmt::print("  {:24} {:9.3f} ms a step, {:.3f} of AdamW's ({:.3f} to {:.3f})\n", name, 1e3 * median(took[name]),
                 median(ratios[name]), *std::min_element(ratios[name].begin(), ratios[name].end()),
                 *std::max_element(ratios[name].begin(), ratios[name].end()));
  }
}
