// An MLP trained as a pipeline: two stages, two data-parallel copies of the first. The same numbers come
// out on one worker: run it with "1", "2,2" or "2,1" (dp widths per stage).
#include <cstdio>
#include <sstream>

#include <troupe/troupe.h>

using namespace troupe;
using namespace troupe::runtime;

/// Input rows are random; the target is each row shifted by one place.
struct Data final : actors::UserActor {
  explicit Data(const actors::UserActorInfo& info) : shift(info.attrs.integer("shift")) {}
  Status act(actors::UserCall& call) override {
    auto& v = call.out[0];  // (samples, 16)
    for (std::int64_t i = 0; i < v.size(); ++i) {
      const std::int64_t row = call.microbatch * call.samples_per_microbatch + i / 16, col = (i + shift) % 16;
      v.as<float>()[i] =
          to_unit(philox(7, static_cast<std::uint64_t>(row * 16 + col), static_cast<std::uint64_t>(call.step))[0]) -
          0.5f;
    }
    return {};
  }
  std::int64_t shift;
};

int main(int argc, char** argv) {
  App app;
  app.actor<Data>("data");
  app.serve_if_worker(argc, argv);

  std::vector<std::int64_t> dp;
  std::istringstream widths(argc > 1 ? argv[1] : "2,1");
  for (std::string w; std::getline(widths, w, ',');) dp.push_back(std::atoll(w.c_str()));

  constexpr std::int64_t microbatches = 8, samples = 4;
  Graph g(app.ops());
  g.program("train", {microbatches, samples});
  g.unit("hidden");
  const Value x = g.actor("data", "input", {}, {{"x", {DType::f32, {samples, 16}}, {}}},
                          {{"shift", std::int64_t{0}}})[0];
  const Value h = g.op("relu", {g.op("linear", {x, g.param("w1", {64, 16}, Init::normal(0.2f))})[0]})[0];
  g.unit("output");
  const Value y = g.op("linear", {h, g.param("w2", {16, 64}, Init::normal(0.2f))})[0];
  const Value t = g.actor("data", "target", {}, {{"t", {DType::f32, {samples, 16}}, {}}},
                          {{"shift", std::int64_t{1}}})[0];
  const Value loss = g.op("mse_loss", {y, t}, {{"scale", 1.0 / (microbatches * samples)}})[0];
  g.minimize(loss, {});

  const auto plan = compile(g, {.stages = stage_meshes(dp), .stage_of_unit = {}, .seed = 1, .costs = {}});
  if (!plan.ok()) return app.run_main(plan, {});
  JobOptions job;
  job.session.steps = 200;
  job.session.loss_divisor = microbatches * samples;
  job.session.lr = [](std::int64_t) { return 3e-3; };
  job.session.on_step = [](const StepResult& r) {
    if (r.step % 50 == 0 || r.step == 199)
      std::printf("step %lld: loss %.6f\n", static_cast<long long>(r.step), r.loss);
  };
  const JobResult result = app.run(*plan, job);
  std::printf("params_hash %s%s\n", result.params_hash.c_str(), result.status.message().c_str());
  return result.exit_code;
}
