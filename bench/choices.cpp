// What each means of hiding exchanges is worth: a step of the model as the game plays it, without, with one, with both.
//
//   bench_choices CONFIG.toml MESH COSTS.toml [KEY=VALUE...]
//
// For links of 50 us whose messages take 0.3, 0.5 and 0.8 of the computing. Means: products for weights behind the
// exchange of a backward segment's result (Pipeline::weights_apart), microbatches ahead (choose_ahead).
#include <fmt/format.h>

#include <cstdlib>

#include "apps/job/planning.h"
#include "apps/lm/model.h"
#include "runtime/plan/stage_meshes.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

[[noreturn]] void die(const std::string& why) {
  fmt::print(stderr, "{}\n", why);
  std::exit(1);
}

struct Step {
  double step_s = 0, compute_s = 0, messages_s = 0;
  std::int64_t place_bytes = 0;
  std::int32_t ahead = 0;
};

Step played(const App& app, lm::JobArguments arguments, const std::string& throttle, bool apart, bool ahead) {
  arguments.throttle = {throttle};
  int code = 0;
  const auto prepared = lm::prepare(arguments, code);
  if (!prepared.ok()) die(prepared.status().message());
  const lm::Prepared& p = *prepared;
  CompileOptions o;
  o.stages = stage_meshes(p.mesh.dp, lm::model_axes(p.mesh, p.config));
  o.zero = static_cast<std::int32_t>(p.config.mesh.zero);
  o.costs = p.costs;
  o.pipeline.weights_apart = apart;
  const Graph graph = lm::build_model(p.config, app.ops(), "corpus", 0);
  Expected<AheadChoice> choice = AheadChoice{};
  if (ahead) {
    choice = choose_ahead(graph, o);
  } else {
    auto plan = compile(graph, o);
    if (!plan.ok()) die(plan.status().message());
    choice = AheadChoice{*std::move(plan), {}};
  }
  if (!choice.ok()) die(choice.status().message());
  const auto predicted = lm::predict(choice->plan);
  if (!predicted.ok()) die(predicted.status().message());
  const GameResult& game = predicted->game;
  Step out{game.step_s, game.compute_s, game.messages_s, 0, choice->plan.pipeline.ahead};
  for (const auto& m : game.memory) out.place_bytes = std::max(out.place_bytes, m.total());
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) die("usage: bench_choices CONFIG.toml MESH COSTS.toml [KEY=VALUE...]");
  App app;
  lm::register_actors(app);
  lm::JobArguments arguments;
  arguments.config_path = argv[1];
  arguments.mesh = argv[2];
  arguments.costs = argv[3];
  for (int i = 4; i < argc; ++i) arguments.overrides.emplace_back(argv[i]);
  const Step fast = played(app, arguments, "latency=0us,bandwidth=1000000MB/s", false, false),
             slow = played(app, arguments, "latency=0us,bandwidth=1MB/s", false, false);
  const double bytes = (slow.messages_s - fast.messages_s) * 1e6;
  fmt::print(
      "| mesh | messages | means | ahead | MiB a place | step, ms | of the first |\n|---|---|---|---|---|---|---|\n");
  for (const double share : {0.3, 0.5, 0.8}) {
    double first_s = 0;
    for (const int means : {0, 1, 2, 3}) {
      const double rate = bytes / (fast.compute_s * share) * 1e-6;
      const Step s = played(app, arguments, fmt::format("latency=50us,bandwidth={:.2f}MB/s", rate), (means & 1) != 0,
                            (means & 2) != 0);
      if (means == 0) first_s = s.step_s;
      const char* names[] = {"none", "weights apart", "ahead", "both"};
      fmt::print("| {} | {} | {} | {} | {} | {:.1f} | {:.3f} |\n", argv[2], share, names[means], s.ahead,
                 s.place_bytes >> 20, s.step_s * 1e3, s.step_s / first_s);
    }
  }
}
