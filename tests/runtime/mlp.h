// A small MLP as a pipeline of units, for tests: synthetic data made by a user-defined actor.
#pragma once

#include "devices/base/philox.h"
#include "runtime/compile/compile.h"
#include "runtime/launch/sim_cluster.h"

namespace mlp {

using namespace troupe;
using namespace troupe::runtime;

inline const kernels::OpSet& ops() {
  static const kernels::OpSet set = kernels::standard_ops();
  return set;
}

struct Shape_ {
  std::int64_t microbatches = 8, samples = 2, width = 24, hidden = 40, layers = 3,
               unit_layers = 1;  // of one unit
  bool tied = false;
  double dropout = 0;
  bool evaluates_first = false;  ///< program "evaluate" is declared before "train"
};

/// Inputs and targets are functions of (seed, step, sample).
class Data final : public actors::UserActor {
 public:
  explicit Data(const actors::UserActorInfo& info) : key_(philox_key(info.seed, info.attrs.text("stream"))) {}
  Status act(actors::UserCall& call) override {
    auto& v = call.out[0];
    for (std::int64_t i = 0; i < v.size(); ++i)
      v.as<float>()[i] =
          to_unit(philox(key_, static_cast<std::uint64_t>(call.microbatch) << 32 | static_cast<std::uint64_t>(i),
                         static_cast<std::uint64_t>(call.step))[0]) -
          0.5f;
    return {};
  }

 private:
  std::uint64_t key_;
};

inline actors::UserActorSet actor_set() {
  return {{"data", [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
             return std::unique_ptr<actors::UserActor>(std::make_unique<Data>(info));
           }}};
}

inline Graph graph(const kernels::OpSet& ops, const Shape_& s) {
  Graph g(ops);
  const auto n = s.samples;
  auto forward = [&](bool train) {
    g.unit("in");
    Value x = g.actor("data", train ? "x" : "eval.x", {}, {{"x", {DType::f32, {n, s.width}}}},
                      {{"stream", std::string("x")}})[0];
    for (std::int64_t l = 0; l < s.layers; ++l) {
      const std::string name = "layer" + std::to_string(l);
      if (l % s.unit_layers == 0) g.unit(name);
      const std::string up = s.tied && l == s.layers - 1 ? "layer0.up" : name + ".up";
      Value h = g.op("linear", {x, g.param(up, {s.hidden, s.width}, Init::normal(0.2f))})[0];
      h = g.op("relu", {h})[0];
      if (s.dropout > 0 && train) h = g.op("dropout", {h}, {{"p", s.dropout}, {"rng", name + ".dropout"}})[0];
      Value y = g.op("linear", {h, g.param(name + ".down", {s.width, s.hidden}, Init::normal(0.2f))})[0];
      x = g.op("add", {x, y})[0];
    }
    g.unit("out");
    Value t = g.actor("data", train ? "t" : "eval.t", {}, {{"t", {DType::f32, {n, s.width}}}},
                      {{"stream", std::string("t")}})[0];
    return g.op("mse_loss", {x, t}, {{"scale", 1.0 / static_cast<double>(s.microbatches * n)}})[0];
  };
  auto train = [&] {
    g.program("train", {s.microbatches, n});
    Value loss = forward(true);
    kernels::AdamW hyper;
    hyper.weight_decay = 0.1f;
    g.minimize(loss, hyper);
  };
  if (!s.evaluates_first) train();
  g.program("evaluate", {3, n});
  g.report("eval_loss", forward(false));
  if (s.evaluates_first) train();
  return g;
}

struct Result {
  SimRun run;
  std::vector<double> eval;
  std::vector<double> recur;  ///< of a program of that name
};

/// Any graph.
inline Expected<Plan> compile_over(const Graph& g, const std::vector<std::int64_t>& dp, std::int64_t tp = 1,
                                   std::int32_t zero = 0) {
  CompileOptions o;
  o.stages = stage_meshes(dp, tp);
  o.zero = zero;
  return compile(g, o);
}

inline Expected<Plan> plan(const kernels::OpSet& ops, const Shape_& s, const std::vector<std::int64_t>& dp,
                           std::int32_t zero = 0, const Pipeline& pipeline = {}) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.zero = zero;
  o.pipeline = pipeline;
  o.seed = 7;
  return compile(graph(ops, s), o);
}

inline Expected<Result> train(const Plan& p, const kernels::OpSet& ops, std::int64_t steps, std::uint64_t seed,
                              double divisor, const comm::SimLink& link = {}) {
  Result out;
  SessionOptions session;
  session.steps = steps;
  session.clip = 0.5;
  session.loss_divisor = divisor;
  session.lr = [](std::int64_t step) { return 1e-2 / (1 + 0.1 * static_cast<double>(step)); };
  session.readers = [&p](std::int64_t version) {
    std::vector<std::string> programs;
    if (version % 2 == 0) programs.push_back("evaluate");
    if (version % 2 == 0 && p.program("recur") >= 0) programs.push_back("recur");
    return programs;
  };
  session.on_closed = [&](const std::string& program, std::int64_t, const std::vector<Report>& reports) {
    double sum = 0;
    for (const auto& r : reports) sum += r.values[0];
    (program == "recur" ? out.recur : out.eval).push_back(sum);
  };
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.link = link;
  auto run = run_simulated(p, ops, actor_set(), session, cluster);
  if (!run.ok()) return run.status();
  out.run = *std::move(run);
  return out;
}

}  // namespace mlp
