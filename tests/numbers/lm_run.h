// A whole job of the language model in one thread: production classes over simulated clock, network and devices.
#pragma once

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "apps/lm/learning_rate.h"
#include "apps/lm/model.h"
#include "apps/lm/sampler.h"
#include "apps/options/config.h"
#include "apps/options/mesh_spec.h"
#include "runtime/compile/compile.h"
#include "runtime/launch/sim_cluster.h"
#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"

namespace troupe::test {

using namespace troupe::runtime;

/// Steps of a test: under sanitizers fewer, for instrumented code is slow and what it looks for shows in the first
/// steps.
#ifdef __SANITIZE_ADDRESS__
constexpr std::int64_t unless_instrumented(std::int64_t, std::int64_t fewer) { return fewer; }
#else
constexpr std::int64_t unless_instrumented(std::int64_t steps, std::int64_t) { return steps; }
#endif

/// Steps of a long test and of a short one.
constexpr std::int64_t many = unless_instrumented(100, 6), some = unless_instrumented(10, 2);

struct Outcome {
  std::string hash;
  std::vector<double> losses, norms, eval;
  std::string text;
  SumState sums;  ///< of the last version
  bool operator==(const Outcome&) const = default;
};

inline std::string corpus() {
  static const std::string path =
      (std::filesystem::temp_directory_path() / ("troupe-lm-numbers-" + std::to_string(::getpid()) + ".txt")).string();
  static const bool removed_at_exit = [] {
    std::atexit([] { std::filesystem::remove(path); });
    return true;
  }();
  (void)removed_at_exit;
  std::ofstream out(path);
  for (int i = 0; i < 400; ++i) out << "the " << i * 7919 % 1000 << " actors exchange " << i % 13 << " messages; ";
  return path;
}

inline const std::string prompt = "the ";

inline Expected<Plan> plan_of(const runtime::App& app, const lm::LmConfig& c, const std::vector<std::int64_t>& dp,
                              std::int64_t tp = 1, std::int32_t zero = 0, const Pipeline& pipeline = {},
                              const CostModel& costs = {}) {
  CompileOptions o;
  o.stages = stage_meshes(dp, lm::model_axes({dp, static_cast<std::int64_t>(dp.size()), tp}, c));
  o.zero = zero;
  o.pipeline = pipeline;
  o.seed = 3;
  o.costs = costs;
  return compile(lm::build_model(c, app.ops(), corpus(), lm::Sampler(prompt).prompt()), o);
}

/// `on`: where places compute; null: on the host.
inline Expected<Outcome> train(const runtime::App& app, const lm::LmConfig& c, const Plan& plan, std::int64_t steps,
                               std::uint64_t seed, const std::shared_ptr<const Accelerator>& on = nullptr) {
  if (const Status s = verify(plan); !s.ok()) return s;
  Outcome out;
  lm::Sampler sampler(prompt);
  SessionOptions s;
  s.steps = steps;
  s.clip = c.optimizer.clip;
  s.loss_divisor = static_cast<double>(tokens_per_step(c));
  s.lr = [&](std::int64_t step) { return lm::lr_at(c.schedule, step); };
  s.readers = [&](std::int64_t version) {
    std::vector<std::string> programs;
    if (version > 0 && version % c.eval.every == 0) programs.push_back("evaluate");
    if (version == steps) programs.push_back("sample");
    return programs;
  };
  s.on_step = [&](const StepResult& r) {
    out.losses.push_back(r.loss);
    out.norms.push_back(r.grad_norm);
  };
  s.on_closed = [&](const std::string& program, std::int64_t, const std::vector<Report>& reports) {
    if (program == "sample") return sampler.finish(reports);
    double sum = 0;
    for (const auto& r : reports) sum += r.values[0];
    out.eval.push_back(sum);
  };
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.accelerator = on;
  const kernels::OpSet ops = on ? on->with_bodies(app.ops()) : app.ops();
  auto run = run_simulated(plan, ops, app.actors(), s, cluster);
  if (!run.ok()) return run.status();
  out.hash = run->params_hash;
  out.sums = run->sums;
  out.text = sampler.text();
  return out;
}

inline Expected<Outcome> train(const runtime::App& app, const lm::LmConfig& c, const std::vector<std::int64_t>& dp,
                               std::int64_t steps, std::uint64_t seed, std::int64_t tp = 1, std::int32_t zero = 0,
                               const Pipeline& pipeline = {}) {
  TROUPE_ASSIGN(const Plan plan, plan_of(app, c, dp, tp, zero, pipeline));
  return train(app, c, plan, steps, seed);
}

inline lm::LmConfig lm_tiny(bool tied) {
  auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml",
                           {tied ? "model.tied=true" : "model.tied=false"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

/// The largest difference, relative to b.
inline double worst(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double far = 0;
  for (std::size_t i = 0; i < a.size(); ++i) far = std::max(far, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return far;
}

/// NU-3 (model axes): how far another tp may change a number, as a part of it. It changes the order of some sums in
/// f32, each rounded by 2^-24 of it: hundreds of them between a token and its loss, in either direction, and what a
/// step begins with differs as much as the steps before it have made it. A loss is a mean over all tokens, of which
/// most errors cancel: 3e-8 was measured. A norm is no mean, and follows the loss's slope rather than its value: 4e-7,
/// with tied embeddings 6e-6. A place of two that counts its square sums twice changes the norm by 14 %; the clip
/// passes that on to all gradients, of which AdamW's updates, and so the losses, hardly depend.
constexpr double tp_loss = 1e-5, tp_norm = 3e-5;

template <class Run>
void check_losses_and_norms_near(const Run& other, const Run& alone) {
  CHECK(worst(other.losses, alone.losses) <= tp_loss);
  CHECK(worst(other.norms, alone.norms) <= tp_norm);
}

inline void check_near(const Outcome& other, const Outcome& alone) {
  check_losses_and_norms_near(other, alone);
  CHECK(worst(other.eval, alone.eval) <= tp_loss);
}

/// dp of each pipeline stage, and the tp of all.
struct DpTp {
  std::vector<std::int64_t> dp;
  std::int64_t tp;
};

inline std::string text(const DpTp& m) {
  std::string s = "tp " + std::to_string(m.tp) + ", dp per stage";
  for (auto d : m.dp) s += " " + std::to_string(d);
  return s;
}

}  // namespace troupe::test
