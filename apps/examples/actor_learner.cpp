// actor_learner [LAG [SEED]]: an actor plays, and a learner makes new weights of what came of it LAG steps ago: two
// models, each on a worker of its own; with a lag both work at the same time; with a seed, simulated in this process.
// In each of four situations one of four moves is rewarded nine times in ten, the others three times. A rewarded move
// becomes a label: the gradient is that of REINFORCE (Williams, 1992).
#include <cmath>
#include <cstdio>
#include <map>

#include <troupe/troupe.h>
using namespace troupe;
using namespace troupe::runtime;
constexpr std::int64_t rows = 16, kinds = 4, steps = 400, last = 100;

struct Draws : actors::UserActor {
  explicit Draws(const actors::UserActorInfo& info) : key(philox_key(info.seed, info.name)) {}
  double draw(const actors::UserCall& call, std::int64_t row, std::size_t which = 0) const {  // 0 to 1
    return to_unit(philox(key, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(call.step))[which]);
  }
  std::uint64_t key;
};
struct World final : Draws {  // a situation in each row
  using Draws::Draws;
  Status act(actors::UserCall& call) override {
    for (std::int64_t i = 0; i < rows * kinds; ++i)
      call.out[0].as<float>()[i] = i % kinds == static_cast<std::int64_t>(draw(call, i / kinds) * kinds) ? 1 : 0;
    return {};
  }
};
struct Player final : Draws {  // moves by their probabilities; a label of -1 counts for nothing
  using Draws::Draws;
  Status act(actors::UserCall& call) override {
    const float *x = call.in[0].as<float>(), *logits = call.in[1].as<float>();
    double rewards = 0;
    for (std::int64_t r = 0; r < rows; ++r, x += kinds, logits += kinds) {
      double at = 0, all = 0;
      for (std::int64_t k = 0; k < kinds; ++k) all += std::exp(logits[k]);
      int move = 0;
      while (move + 1 < kinds && (at += std::exp(logits[move]) / all) < draw(call, r)) ++move;
      const bool rewarded = draw(call, r, 1) < (x[(move + 1) % kinds] == 1 ? 0.9 : 0.3);
      call.out[0].as<std::int32_t>()[r] = rewarded ? (++rewards, move) : -1;
    }
    *call.out[1].as<float>() = *call.in[2].as<float>();  // the version that it has played with
    call.report("rewards", {rewards});
    return {};
  }
};

int main(int argc, char** argv) {
  App app;
  app.actor<World>("world");
  app.actor<Player>("player");
  app.serve_if_worker(argc, argv);
  const std::int64_t lag = argc > 1 ? std::atoll(argv[1]) : 1;
  Graph g(app.ops());
  g.program("train", {.samples = rows});
  g.model("actor");
  const Value x = g.actor("world", "world", {}, {{"x", {DType::f32, {rows, kinds}}}})[0];
  const Value w = g.param("w", {kinds, kinds}, Init::constant(0)), version = g.param("version", {1}, Init::constant(0));
  const std::vector<Value> play = {x, g.op("linear", {x, w})[0], version};
  const auto played = g.actor("player", "player", play, {{"label", {DType::i32, {rows}}}, {"of", {DType::f32, {1}}}});
  g.model("learner");
  const auto before = [&](const char* name, Value v) { return lag == 0 ? v : g.step_delay(name, v, lag); };
  const Value y = g.op("linear", {before("x", x), w})[0];
  g.minimize(g.op("softmax_cross_entropy", {y, before("label", played[0])}, {{"scale", 1.0 / rows}})[0], {.lr = 0.05f});
  g.report("version", before("of", played[1]));
  g.next(version, g.update_number());
  const auto plan = compile(g, {.models = {{"actor", stage_meshes({1})}, {"learner", stage_meshes({1})}}});
  if (!plan.ok()) return app.run_main(plan, {});
  JobOptions job{.session = {.steps = steps}};
  std::map<int, int> lags;
  double rewards = 0;
  job.session.on_step = [&](const StepResult& step) {
    for (const auto& told : step.reports)
      if (told.name == "version") ++lags[static_cast<int>(static_cast<double>(step.step) - told.values[0])];
      else if (step.step >= steps - last) rewards += told.values[0];
  };
  const auto end = argc > 2 ? app.simulate(*plan, job, std::strtoull(argv[2], nullptr, 10)).job : app.run(*plan, job);
  if (!end.status.ok()) return std::fprintf(stderr, "%s\n", end.status.message().c_str()), end.exit_code;
  for (const auto& [versions, acts] : lags) std::printf("lag %d: %d steps\n", versions, acts);
  std::printf("mean reward %.3f, %s\n", rewards / (last * rows), end.params_hash.c_str());
}
