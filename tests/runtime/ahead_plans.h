// Plans of the MLP with exchanges inside stages, on links whose messages take as long as a test wants.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

namespace ahead_plans {

using namespace mlp;

inline constexpr std::int64_t step_microbatches = 8;

inline Graph step_graph(std::int64_t microbatches = step_microbatches) {
  Shape_ s;
  s.microbatches = microbatches;
  s.layers = 4;
  return graph(ops(), s);
}

/// One stage on tp=2. Kernels take their launch, 1 ms each; a message takes `message_s`, of which half is latency.
inline CompileOptions with_links(double message_s, std::int32_t ahead = 0, bool weights_apart = false) {
  CompileOptions o;
  o.stages = stage_meshes({1}, 2);
  o.pipeline.ahead = ahead;
  o.pipeline.weights_apart = weights_apart;
  o.seed = 7;
  o.costs.flops_per_s = o.costs.memory_bytes_per_s = 1e15;
  o.costs.launch_s = 1e-3;
  o.costs.kernels["add_into"] = {{0, 1e3, 1e-12}};  // at full rate: an exchange is its messages
  // Every exchange of a microbatch moves 2 samples of 24 floats, or a part of them.
  o.costs.intra_node = {message_s / 2, 2 * 24 * 4 / std::max(1e-12, message_s / 2)};
  return o;
}

inline Plan plan_of(const CompileOptions& o, std::int64_t microbatches = step_microbatches) {
  auto p = compile(step_graph(microbatches), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const Status s = verify(*p);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return *std::move(p);
}

inline GameResult game_of(const Plan& p, GameOptions o = {}) {
  o.every_program = false;
  auto r = play(p, o);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  return *std::move(r);
}

}  // namespace ahead_plans
