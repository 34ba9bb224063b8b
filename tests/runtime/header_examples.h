// What the examples in graph.h and app.h stand in (tests/CMakeLists.txt): they compile as they are, and that of app.h
// runs.
#pragma once

#include <algorithm>

#include <troupe/troupe.h>

using namespace troupe;
using namespace troupe::runtime;

/// Publishes ones.
struct Source final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    for (auto& out : call.out) std::fill_n(out.as<float>(), out.size(), 1.0f);
    return {};
  }
};

/// Two layers that learn to make ones of ones.
inline void add_model(Graph& g) {
  g.program("train", {.microbatches = 2, .samples = 2});
  g.unit("first");
  const Value x = g.actor("source", "ones", {}, {{"x", {DType::f32, {2, 4}}}})[0];
  const Value h = g.op("linear", {x, g.param("first.w", {8, 4}, Init::normal(0.1f))})[0];
  g.unit("second");
  const Value y = g.op("linear", {h, g.param("second.w", {4, 8}, Init::normal(0.1f))})[0];
  const Value t = g.actor("source", "target", {}, {{"t", {DType::f32, {2, 4}}}})[0];
  g.minimize(g.op("mse_loss", {y, t}, {{"scale", 0.25}})[0], {});
}
