// Two networks that share no parameter, each trained by a program of its own.
#pragma once

#include <doctest/doctest.h>

#include <array>

#include "tests/runtime/compiled.h"
#include "tests/runtime/mlp.h"

namespace mlp {

/// A network of its own: names, widths, microbatches and optimizer differ from those of another one.
struct Net {
  std::string name;
  std::int64_t microbatches, samples, width, hidden;
  float decay;
  std::string units;  ///< begins the names of its units
};
inline const Net small{"small", 4, 2, 12, 8, 0.0f}, large{"large", 6, 3, 24, 40, 0.1f};

inline void add_net(Graph& g, const Net& net) {
  const std::string& own = net.name;
  g.program(own, {net.microbatches, net.samples});
  Value x = -1;
  for (const char* layer : {"first", "second"}) {
    g.unit(net.units + layer);  // where it is empty, both nets have parts of the same units
    if (x < 0)
      x = g.actor("data", own + ".x", {}, {{"x", {DType::f32, {net.samples, net.width}}}}, {{"stream", own + ".x"}})[0];
    const std::string name = own + "." + layer;
    Value h = g.op("linear", {x, g.param(name + ".up", {net.hidden, net.width}, Init::normal(0.3f))})[0];
    h = g.op("relu", {h})[0];
    x = g.op("linear", {h, g.param(name + ".down", {net.width, net.hidden}, Init::normal(0.3f))})[0];
  }
  const Value t = g.actor("data", own + ".t", {}, {{"t", {DType::f32, {net.samples, net.width}}}},
                          {{"stream", own + ".t"}})[0];
  const double scale = 1.0 / static_cast<double>(net.microbatches * net.samples);
  const Value loss = g.op("mse_loss", {x, t}, {{"scale", scale}})[0];
  kernels::AdamW hyper;
  hyper.weight_decay = net.decay;
  hyper.lr = net.decay > 0 ? 3e-3f : 1e-2f;
  g.minimize(loss, hyper);
}

inline Graph nets(const std::vector<Net>& all, const kernels::OpSet& ops = mlp::ops()) {
  Graph g(ops);
  for (const Net& net : all) add_net(g, net);
  return g;
}

/// The large net is clipped, the small one is not.
inline SessionOptions session_of(std::int64_t steps, std::vector<std::string> parameters) {
  SessionOptions session;
  session.steps = steps;
  session.parameters = std::move(parameters);
  session.programs["large"] = {.clip = 0.05, .loss_divisor = 3, .lr = {}};
  session.programs["small"] = {.clip = 0, .loss_divisor = 1, .lr = [](std::int64_t step) { return 1e-2 / (1 + step); }};
  return session;
}

struct Trained {
  std::vector<std::array<double, 3>> steps;  ///< loss, norm, learning rate
  std::map<std::string, FinalParameter> parameters;
  SimRun run;
};

/// What a run tells of one net.
inline Trained train_net(const Plan& p, const Net& net, std::int64_t steps, const SimClusterOptions& cluster = {},
                         std::optional<SumState> sums = {}, std::int64_t copy_every = 0) {
  std::vector<std::string> names;
  for (const auto& param : p.params)
    if (param.name.starts_with(net.name + ".")) names.push_back(param.name);
  SessionOptions session = session_of(steps, names);
  session.sums = std::move(sums);
  session.copy_every = copy_every;
  std::erase_if(session.programs, [&](const auto& of) { return p.program(of.first) < 0; });
  const SimOutcome out = simulate_job(p, ops(), actor_set(), std::move(session), cluster);
  REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
  Trained trained;
  for (const StepResult& step : out.run.steps) {
    const ProgramResult* of = step.program == net.name ? &step : nullptr;
    for (const ProgramResult& other : step.others)
      if (other.program == net.name) of = &other;
    REQUIRE(of != nullptr);
    trained.steps.push_back({of->loss, of->grad_norm, of->lr});
  }
  REQUIRE(std::ssize(trained.steps) == steps);
  trained.parameters = {out.job.parameters.begin(), out.job.parameters.end()};
  REQUIRE(trained.parameters.size() == names.size());
  trained.run = out.run;
  return trained;
}

inline void check_same(const Trained& one, const Trained& other) {
  CHECK(one.steps == other.steps);
  for (const auto& [name, parameter] : one.parameters) {
    CAPTURE(name);
    CHECK(parameter.values == other.parameters.at(name).values);
  }
}

inline std::vector<CompileOptions> meshes_of_nets() {
  std::vector<CompileOptions> out;
  const auto add = [&](const std::vector<std::int64_t>& dp, std::int64_t tp, std::int32_t zero) {
    CompileOptions o;
    o.stages = stage_meshes(dp, tp);
    o.zero = zero;
    o.seed = 7;
    o.keeps_version = out.size() % 2 == 1;
    out.push_back(o);
  };
  for (const std::int32_t zero : {0, 1, 2, 3}) add({2}, 1, zero);
  add({1}, 1, 0);
  add({3}, 1, 0);
  add({4}, 1, 2);
  add({1, 1}, 1, 0);
  add({2, 1}, 1, 1);
  add({1, 2}, 1, 3);
  return out;
}

inline CompileOptions one_place() {
  CompileOptions o;
  o.seed = 7;
  return o;
}

}  // namespace mlp
