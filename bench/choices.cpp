// What each means of hiding exchanges is worth: a step of the model without, with one, with both, as the game plays it
// and as worker processes take it whose kernels sleep for their planned time.
//
//   bench_choices CONFIG.toml MESH COSTS.toml [--text TEXT] [KEY=VALUE...]
//
// For links of 50 us whose messages take 0.3, 0.5 and 0.8 of the computing; kernels take twice their time. Means:
// weight gradients as a pass of their own (Pipeline::weights_apart), microbatches ahead (as many as choose_ahead takes
// of them alone), what schedule.ahead = auto chooses. With --text each is run on processes, too: the median of five
// steps after the first two.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>

#include "bench/paced_runs.h"

using namespace bench;
using namespace troupe;
using namespace troupe::runtime;

namespace {

enum class Means { none, apart, ahead, chosen };
constexpr const char* names[] = {"none", "weights apart", "ahead", "auto"};

struct Step {
  Pipeline pipeline;
  double step_s = 0, compute_s = 0, messages_s = 0, measured_s = 0;
  std::int64_t place_bytes = 0;
};

/// The same schedule in all but weight gradients, which stay with their backward pass.
Expected<Plan> without_apart(const Graph& graph, CompileOptions o, const AheadChoice& choice) {
  o.pipeline.ahead = 0;
  for (const AheadTried& t : choice.tried)
    if (t.taken() && !t.weights_apart) o.pipeline.ahead = t.ahead;
  return compile(graph, o);
}

Step step_of(const App& app, lm::JobArguments arguments, const std::string& throttle, Means means,
             const std::optional<std::string>& text) {
  arguments.throttle = {throttle};
  const lm::Prepared p = prepare_train(arguments);
  CompileOptions o = must(lm::compile_options(p));
  o.snapshots = o.pipeline.ahead = 0;
  o.pipeline.weights_apart = means == Means::apart;
  const Graph graph = lm::build_model(p.config, app.ops(), text.value_or("corpus"));
  Plan plan;
  if (means == Means::none || means == Means::apart) {
    plan = must(compile(graph, o));
  } else {
    AheadChoice choice = must(choose_ahead(graph, o));
    plan = means == Means::chosen ? std::move(choice.plan) : must(without_apart(graph, o, choice));
  }
  const lm::Predicted predicted = must(lm::predict(plan));
  const GameResult& game = predicted.game;
  Step out{plan.pipeline, game.step_s, game.compute_s, game.messages_s, 0, 0};
  for (const auto& m : game.memory) out.place_bytes = std::max(out.place_bytes, m.total());
  if (text) out.measured_s = measured_s(app, p, plan, p.throttle);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  App app;
  lm::register_actors(app);
  app.serve_if_worker(argc, argv);
  if (argc < 4) die("usage: bench_choices CONFIG.toml MESH COSTS.toml [--text TEXT] [KEY=VALUE...]");
  lm::JobArguments arguments;
  arguments.config_path = argv[1];
  arguments.mesh = argv[2];
  arguments.costs = argv[3];
  arguments.paced = paced;
  std::optional<std::string> text;
  for (int i = 4; i < argc; ++i) {
    if (std::string(argv[i]) == "--text" && i + 1 < argc) text = argv[++i];
    else arguments.overrides.emplace_back(argv[i]);
  }
  // Other links may have other layouts, and so other bytes and computing: corrects the rate until both fit the share,
  // or takes the best of six.
  const auto throttle_of = [&](double share) {
    double megabytes_per_s = 100, best = std::numeric_limits<double>::infinity();
    std::string out;
    for (int i = 0; i < 6 && best >= 0.01; ++i) {
      auto text_of = fmt::format("latency=50us,bandwidth={:.4g}MB/s", megabytes_per_s);
      const Step s = step_of(app, arguments, text_of, Means::none, std::nullopt);
      const double found = s.messages_s / s.compute_s;
      if (found == 0) die(fmt::format("a step on {} has no messages: nothing to hide", argv[2]));
      if (const double off = std::abs(found / share - 1); off < best) best = off, out = text_of;
      megabytes_per_s *= found / share;
    }
    return out;
  };
  fmt::print(
      "| mesh | messages | means | ahead | apart | MiB a place | played, ms | of the first | measured, ms | of the "
      "first "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const double share : {0.3, 0.5, 0.8}) {
    Step first;
    const std::string throttle = throttle_of(share);
    for (const Means means : {Means::none, Means::apart, Means::ahead, Means::chosen}) {
      const Step s = step_of(app, arguments, throttle, means, text);
      if (means == Means::none) first = s;
      fmt::print("| {} | {:.2f} | {} | {} | {} | {} | {:.0f} | {:.3f} | {} |\n", argv[2],
                 first.messages_s / first.compute_s, names[static_cast<int>(means)], s.pipeline.ahead,
                 s.pipeline.weights_apart ? "yes" : "no", s.place_bytes >> 20, s.step_s * 1e3, s.step_s / first.step_s,
                 text ? fmt::format("{:.0f} | {:.3f}", s.measured_s * 1e3, s.measured_s / first.measured_s) : "| ");
      std::fflush(stdout);
    }
  }
}
