// What of a step is not messages: the plan that a job has on throttled links, on links that cost nothing. A job that is
// planned for such links may have other layouts, and so other computing.
//
//   bench_free_links CONFIG.toml MESH THROTTLE [--costs COSTS.toml] [--ahead N] [--apart] [--paced SCALE] [--text TEXT]
//                    [KEY=VALUE...]
//
// Prints seconds a step, as the game plays it, and with --text as worker processes take it on this machine's own links,
// which do cost something. N microbatches are ahead (0); --apart: weight gradients are apart. Kernels take SCALE (2)
// times their time.
#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "apps/options/throttle_spec.h"
#include "bench/paced_runs.h"

using namespace bench;
using namespace troupe;
using namespace troupe::runtime;

namespace {

template <class T>
T number(const char* option, const std::string& text, T least) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least))
    die(fmt::format("{} {}: expected a number from {} on", option, text, least));
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  App app;
  lm::register_actors(app);
  app.serve_if_worker(argc, argv);
  if (argc < 4)
    die("usage: bench_free_links CONFIG.toml MESH THROTTLE [--costs COSTS.toml] [--ahead N] [--apart] [--paced "
        "SCALE] [--text TEXT] [KEY=VALUE...]");
  lm::JobArguments arguments;
  arguments.config_path = argv[1];
  arguments.mesh = argv[2];
  arguments.throttle = {argv[3]};
  arguments.paced = paced;
  std::optional<std::string> text;
  std::string ahead = "0", scale = fmt::format("{}", paced);
  bool apart = false;
  for (int i = 4; i < argc; ++i) {
    const std::string word = argv[i];
    std::string* const value = word == "--costs"   ? &arguments.costs
                               : word == "--ahead" ? &ahead
                               : word == "--paced" ? &scale
                                                   : nullptr;
    if (value && i + 1 < argc) *value = argv[++i];
    else if (word == "--text" && i + 1 < argc) text = argv[++i];
    else if (word == "--apart") apart = true;
    else arguments.overrides.push_back(word);
  }
  arguments.paced = number<double>("--paced", scale, 1e-9);
  const lm::Prepared p = prepare_train(arguments);
  arguments.throttle = {"latency=0us,bandwidth=1000000MB/s"};
  const lm::Prepared free = prepare_train(arguments);
  CompileOptions o = must(lm::compile_options(p));
  const Graph graph = lm::build_model(p.config, app.ops(), text.value_or("corpus"));
  o.snapshots = 0;
  o.pipeline.ahead = number<std::int32_t>("--ahead", ahead, 0);
  o.pipeline.weights_apart = apart;
  o.costs = free.costs;  // layouts stay those of the throttled links
  o.costs.odd_links.clear();
  o.costs.intra_node = o.costs.inter_node = {0, 1e18};
  const Plan plan = must(compile(graph, o));
  fmt::print("{}", must(lm::predict(plan)).game.step_s);
  if (text) fmt::print(" {}", measured_s(app, p, plan, free.throttle));
  fmt::print("\n");
}
