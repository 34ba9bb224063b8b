// How long a step takes: the token game against the production classes, which move every message of a job through a
// simulated network (SimCluster).
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/launch/sim_cluster.h"
#include "runtime/simulate/token_game.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

struct TimedCase {
  Plan plan;
  comm::SimLink link;
  std::string text;
};

TimedCase draw_timed(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const std::int64_t stages = 1 + below(3), dp = 1 + below(3), tp = 1 << below(3);
  Shape_ s;
  s.layers = stages + below(3);
  s.microbatches = dp * (1 + below(5));
  s.width = 8 * (1 + below(4));
  s.hidden = 8 * (1 + below(6));
  CompileOptions o;
  o.stages = stage_meshes(std::vector<std::int64_t>(static_cast<std::size_t>(stages), dp), tp);
  o.zero = static_cast<std::int32_t>(below(4));
  o.pipeline.ahead = static_cast<std::int32_t>(below(3));
  o.costs.flops_per_s = 1e9 * static_cast<double>(1 + below(10));
  o.costs.launch_s = 1e-6 * static_cast<double>(1 + below(100));
  o.costs.memory_bytes_per_s = 1e8;  // adding matters
  TimedCase c;
  c.link.ack_ns = 0;
  c.link.latency_ns = 1000 * (1 + below(300));
  c.link.bytes_per_second = 1'000'000 * (1 + below(50));
  // The network's links have no port in front of them.
  o.costs.intra_node = {static_cast<double>(c.link.latency_ns) * 1e-9, std::numeric_limits<double>::infinity(),
                        static_cast<double>(c.link.bytes_per_second)};
  o.costs.places_per_node = 1000;
  auto p = compile(graph(ops(), s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  c.plan = *std::move(p);
  c.text = fmt::format("seed {}: dp={},tp={},pp={}, ZeRO {}, {} microbatches, {} ahead, {} us, {} MB/s", seed, dp, tp,
                       stages, o.zero, s.microbatches, o.pipeline.ahead, c.link.latency_ns / 1000,
                       c.link.bytes_per_second / 1'000'000);
  return c;
}

double simulated_s(const TimedCase& c, std::int64_t steps) {
  SessionOptions session;
  session.steps = steps;
  session.lr = [](std::int64_t) { return 1e-2; };
  SimClusterOptions options;
  options.run_kernels = false;
  options.link = c.link;
  const auto run = run_simulated(c.plan, ops(), actor_set(), session, options);
  REQUIRE_MESSAGE(run.ok(), run.status().message());
  return static_cast<double>(run->virtual_ns) * 1e-9;
}

}  // namespace

TEST_CASE(
    "a game's step takes the time in which 60 random jobs run on a simulated network: most within 1 %, all within 7 "
    "%") {
  std::vector<double> errors;
  int busy = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    if (!test::is_drawn(seed)) continue;
    const TimedCase c = draw_timed(seed);
    INFO(c.text);
    GameOptions o;
    o.every_program = false;
    o.steps = 3;
    o.control_s = 40e-6;
    const auto game = play(c.plan, o);
    REQUIRE_MESSAGE(game.ok(), game.status().message());
    const double simulated = simulated_s(c, 3) - simulated_s(c, 2);
    errors.push_back(std::abs(game->step_s / simulated - 1));
    // Here the latency is a header's: a receive that comes later than that waits for the bytes only.
    CHECK(errors.back() < 0.07);
    busy += game->messages_s > 0.2 * game->compute_s;
  }
  std::sort(errors.begin(), errors.end());
  MESSAGE("median error " << errors[errors.size() / 2] << ", worst " << errors.back());
  CHECK(errors[errors.size() * 3 / 5] < 0.01);
  CHECK(busy >= test::of_drawn(8));
}

TEST_CASE("an act's end takes a hand-over to reach another stream; on the compute stream the next act waits for none") {
  const auto handovers = [](std::int64_t tp, int& exchanges) {
    Shape_ s;
    s.layers = 3;
    s.microbatches = 5;
    CompileOptions o;
    o.stages = stage_meshes({1}, tp);
    o.costs.launch_s = 1e-3;  // longer than a message
    o.pipeline.weights_apart = false;
    auto p = compile(graph(ops(), s), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    exchanges = 0;  // all-reduces: a microbatch's chain waits for them, not for what leads from B to P
    for (const auto& x : p->exchanges)
      if (x.program == 0 && x.rate == Rate::microbatch && x.name.find("@B") != std::string::npos)
        exchanges += static_cast<int>(s.microbatches);
    GameOptions options;
    options.every_program = false;
    const auto before = play(*p, options);
    REQUIRE_MESSAGE(before.ok(), before.status().message());
    p->costs.handover_s = 1e-5;
    const auto after = play(*p, options);
    REQUIRE_MESSAGE(after.ok(), after.status().message());
    CHECK(after->compute_s == doctest::Approx(before->compute_s).epsilon(1e-9));
    return (after->step_s - before->step_s) / p->costs.handover_s;
  };
  int exchanges = 0;
  const double alone = handovers(1, exchanges);
  CHECK(exchanges == 0);
  const double split = handovers(2, exchanges);
  CHECK(exchanges == 25);
  CHECK(alone == doctest::Approx(1));  // the last gradient's, to the norm
  CHECK(split == doctest::Approx(1 + 2 * exchanges));
}
