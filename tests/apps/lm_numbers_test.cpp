// NU-1 and NU-2 for the language model, whole jobs in one thread: production classes over simulated clock,
// network and devices. Real processes do the same in tests/command.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "apps/lm/learning_rate.h"
#include "apps/lm/model.h"
#include "runtime/compile.h"
#include "runtime/sim_cluster.h"
#include "runtime/token_game.h"
#include "runtime/verify.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

struct Outcome {
  std::string hash;
  std::vector<double> losses, norms, eval;
  std::string text;
  bool operator==(const Outcome&) const = default;
};

lm::LmConfig config(bool tied, int layers) {
  const std::string text =
      "[model]\nlayers = " + std::to_string(layers) + "\nheads = 4\nkv_heads = 2\ndim = 24\nhead_dim = 6\nffn = 40\nseq = 16\n"
      "dropout = 0.1\ntied = " + (tied ? "true" : "false") +
      "\n[schedule]\nsteps = 40\nwarmup = 5\nlr = 3e-3\nbatch = 8\nmicrobatch = 1\nlanes = 8\n"
      "[optimizer]\nclip = 0.05\n[eval]\nevery = 5\nbatches = 3\n[sample]\ntokens = 12\n";
  auto c = lm::parse_config(text, "test");
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

std::string corpus() {
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

Expected<Outcome> train(const runtime::App& app, const lm::LmConfig& c, const std::vector<std::int64_t>& dp,
                        std::int64_t steps, std::uint64_t seed) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.lanes = static_cast<std::int32_t>(c.schedule.lanes);
  o.seed = 3;
  auto plan = compile(lm::build_model(c, app.ops(), corpus(), true), o);
  if (!plan.ok()) return plan.status();
  if (const Status s = verify(*plan); !s.ok()) return s;
  Outcome out;
  lm::Sampler sampler(c, "the ");
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
  s.feed = [&](const std::string& name, std::int64_t, std::int32_t m, const Report* last) { return sampler.feed(name, m, last); };
  SimClusterOptions cluster;
  cluster.seed = seed;
  auto run = run_simulated(*plan, app.ops(), app.actors(), s, cluster);
  if (!run.ok()) return run.status();
  out.hash = run->params_hash;
  out.text = sampler.text();
  return out;
}

}  // namespace

TEST_CASE("NU-1, NU-2: 20 steps of the language model give the same bits on any dp, pp and timing, with dropout, "
          "clipping, tying, evaluation") {
  runtime::App app;
  lm::register_actors(app);
  std::uint64_t seed = 0;   // of the order of actors and the delays of messages; 0: first come, no jitter
  for (const bool tied : {false, true}) {
    const auto c = config(tied, 7);
    const auto alone = train(app, c, {1}, 20, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    REQUIRE(alone->losses.size() == 20);
    CHECK(alone->losses.back() < alone->losses.front());
    for (double n : alone->norms) CHECK(n > c.optimizer.clip);   // clipping acts in every step
    CHECK(alone->eval.size() == 4);
    CHECK(alone->text.size() == 4 + 12);
    for (const std::vector<std::int64_t>& dp :
         {std::vector<std::int64_t>{2}, {3}, {4}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1}, {2, 2}, {2, 1}}) {
      std::string what = tied ? "tied, dp per stage" : "untied, dp per stage";
      for (auto d : dp) what += " " + std::to_string(d);
      CAPTURE(what);
      const auto other = train(app, c, dp, 20, ++seed);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == *alone);
    }
  }
}

TEST_CASE("NU-1: message timing and the order of actors change no bit of the language model") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = config(true, 3);
  const auto first = train(app, c, {1}, 8, 0);
  REQUIRE_MESSAGE(first.ok(), first.status().message());
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    const auto other = train(app, c, seed % 2 ? std::vector<std::int64_t>{2, 2} : std::vector<std::int64_t>{3, 1}, 8, seed);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    CHECK(*other == *first);
  }
}
