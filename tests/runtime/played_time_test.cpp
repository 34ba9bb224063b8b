// How long a step takes: the token game against the production classes, which move every message of a job through a
// simulated network (SimCluster); what a message, a hand-over and an exchange's adding take by themselves.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>

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
  const auto kind = below(6);
  if (kind == 0 && stages > 1) {
    o.pipeline.kind = Pipeline::Kind::zero_bubble;
  } else {
    o.pipeline.ahead = static_cast<std::int32_t>(below(3));
    o.pipeline.weights_apart = below(2) == 0;
  }
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
  c.text = fmt::format(
      "seed {}: dp={},tp={},pp={}, ZeRO {}, {} microbatches, {} and {} ahead, apart {}, {} us, {} MB/s", seed, dp, tp,
      stages, o.zero, s.microbatches, to_string(o.pipeline), o.pipeline.ahead, o.pipeline.weights_apart,
      c.link.latency_ns / 1000, c.link.bytes_per_second / 1'000'000);
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
    "a game's step takes the time in which 160 random jobs run on a simulated network: within 0.5 % where nothing is "
    "added along dp, else within 10 %") {
  std::vector<double> errors;  // where dp > 1
  int alone = 0, hidden = 0, busy = 0;
  for (unsigned seed = 1; seed <= 160; ++seed) {
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
    const double error = std::abs(game->step_s / simulated - 1);
    busy += game->messages_s > 0.2 * game->compute_s;
    if (c.plan.dp_width(0) == 1) {
      CHECK(error < 0.005);
      ++alone;
      hidden += c.plan.workers() > c.plan.stages && (c.plan.pipeline.ahead > 0 || c.plan.pipeline.weights_apart);
      continue;
    }
    // Here the latency is a header's: a receive that comes later than that waits for the bytes only.
    CHECK(error < 0.10);
    errors.push_back(error);
  }
  REQUIRE_FALSE(errors.empty());
  std::sort(errors.begin(), errors.end());
  MESSAGE(alone << " with dp=1, " << hidden
                << " of them under tp with microbatches ahead or weight gradients apart; dp > 1: "
                << "median error " << errors[errors.size() / 2] << ", worst " << errors.back());
  CHECK(alone >= test::of_drawn(30));
  CHECK(hidden >= test::of_drawn(8));
  CHECK(errors[errors.size() / 2] < 0.03);
  CHECK(busy >= test::of_drawn(20));
}

TEST_CASE("an act's end takes a hand-over to reach another stream; on the compute stream the next act waits for none") {
  const auto handovers = [](std::int64_t tp, int& exchanges) {
    Shape_ s;
    s.layers = 3;
    s.microbatches = 5;
    CompileOptions o;
    o.stages = stage_meshes({1}, tp);
    o.costs.launch_s = 1e-3;  // longer than a message
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

TEST_CASE(
    "a message takes an interface, then its link, each of which carries one after the other each way; links to other "
    "nodes have an interface of their own; only what arrives takes the latency") {
  CostModel costs;
  costs.places_per_node = 3;
  costs.intra_node = {100, 8, 2};
  costs.inter_node = {1000, 4, 1};
  GameLinks links(costs, 0);
  comm::Route route;
  comm::Move& move = route.moves.emplace_back();
  const Extent e{
      {{0, 8}}};  // 32 bytes: 4 s of the interface and 16 s of a link within the node, 8 s and 32 s beyond it
  for (Rank peer : {1, 2, 3}) {
    move.sends.push_back({{0, peer, e, {}}});
    move.receives.push_back({{peer, 0, e, {}}});
  }
  move.sends.push_back({{0, 1, e, {}}});  // another part for rank 1
  const auto messages = links.messages(route);
  using Ends =
      std::map<std::pair<Rank, bool>, std::int64_t>;  // in seconds, of the last, by peer and whether it is sent
  const auto carried_s = [&](double now_s) {
    Ends ends;
    for (const GameMessage& m : messages)
      ends[{m.peer, m.sent}] = (links.carry(m, to_ns(now_s)) + m.latency_ns) / to_ns(1);
    return ends;
  };
  CHECK(carried_s(0) == Ends{{{1, false}, 4 + 16 + 100},
                             {{2, false}, 2 * 4 + 16 + 100},
                             {{3, false}, 8 + 32 + 1000},
                             {{1, true}, 4 + 2 * 16},
                             {{2, true}, 2 * 4 + 16},
                             {{3, true}, 8 + 32}});
  // The next act's messages wait for links; those of a later one wait for nothing.
  CHECK(carried_s(1) == Ends{{{1, false}, 2 * 16 + 4 + 100},
                             {{2, false}, 2 * 16 + 8 + 100},
                             {{3, false}, 2 * 32 + 8 + 1000},
                             {{1, true}, 4 + 4 * 16},
                             {{2, true}, 8 + 2 * 16},
                             {{3, true}, 2 * 32 + 8}});
  CHECK(carried_s(500).at({2, true}) == 500 + 2 * 4 + 16);
}

TEST_CASE(
    "an act of another stream waits for an act's end and a hand-over, one of the same stream for the end alone; an "
    "exchange adds once, before it is handed over") {
  const auto step_s = [](std::int64_t layers, std::int64_t tp, double handover_s, double adding_s) {
    Shape_ s;
    s.layers = layers;
    s.microbatches = 1;
    CompileOptions o;
    o.stages = stage_meshes({1}, tp);
    o.costs.intra_node = {0, std::numeric_limits<double>::infinity()};
    o.costs.handover_s = 1;  // the layout of the fewest exchanges, whatever is played
    auto p = compile(graph(ops(), s), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    p->costs.handover_s = handover_s;
    for (auto& a : p->roles[0].actors)
      a.cost_s = a.kind == PlanActor::Kind::exchange && a.cost_s > 0 ? adding_s : 0;  // of those that add
    GameOptions g;
    g.every_program = false;
    g.control_s = 0;
    const auto r = play(*p, g);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r->step_s;
  };
  for (const std::int64_t layers : {2, 3, 4}) {
    CAPTURE(layers);
    const auto layer_s = [&](std::int64_t tp, double handover_s, double adding_s) {
      return step_s(layers + 1, tp, handover_s, adding_s) - step_s(layers, tp, handover_s, adding_s);
    };
    // On tp=2 a layer is two exchanges, each between two acts of the compute stream.
    CHECK(layer_s(2, 1, 0) == doctest::Approx(4));
    CHECK(layer_s(2, 0, 1) == doctest::Approx(2));
    CHECK(layer_s(2, 1, 100) == doctest::Approx(204));
    CHECK(layer_s(1, 1, 100) == doctest::Approx(0));
    CHECK(step_s(layers, 1, 1, 0) == doctest::Approx(1));
  }
}

TEST_CASE(
    "a place receives a message when it has left the interface of its sender, which carries one after the other") {
  Shape_ s;
  s.layers = 1;
  s.microbatches = 2;
  CompileOptions o;
  o.stages = stage_meshes({1, 2});
  o.stage_of_unit = {0, 0, 1};
  o.costs.places_per_node = 8;
  const double floats = static_cast<double>(s.samples * s.width);
  o.costs.intra_node = {0, floats * 4};  // a second for a microbatch's activations
  auto p = compile(graph(ops(), s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  for (auto& role : p->roles)
    for (auto& a : role.actors) a.cost_s = 0;
  GameOptions g;
  g.every_program = false;
  g.unlimited_slots = true;  // both messages leave at once
  const auto r = play(*p, g);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  std::map<Rank, double> begins;  // of the first microbatch of a place of the second stage
  for (const GameAct& a : r->acts)
    if (a.step == 0 && a.rank > 0 && a.pass == Pass::forward && a.microbatch >= 0 && a.begin_s > 0.1 &&
        !begins.count(a.rank))
      begins[a.rank] = a.begin_s;
  REQUIRE(begins.size() == 2);
  CHECK(begins[1] == doctest::Approx(1));
  CHECK(begins[2] == doctest::Approx(2));
}

TEST_CASE(
    "adding takes the time of the kernel that adds: terms to f32, terms to exact sums, exact sums to each other") {
  CompileOptions o;
  o.layout_costs = o.costs;  // layouts that add, though adding is slow
  o.costs.memory_bytes_per_s = 1e9;
  // seconds of 1,000 bytes
  o.costs.kernels = {{"add_into", {{0, 1e3, 1}}}, {"add_terms", {{0, 1e3, 10}}}, {"add_sums", {{0, 1e3, 100}}}};
  Shape_ s;
  s.microbatches = 4;
  const auto seconds = [&](const std::vector<Mesh>& stages, std::int32_t zero, DType from, DType to) {
    o.stages = stages;
    o.zero = zero;
    const auto p = compile(graph(ops(), s), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    std::set<double> found;
    for (const auto& a : p->roles[0].actors) {
      if (a.kind != PlanActor::Kind::exchange || a.cost_s == 0 || !p->is_step_program(a.program)) continue;
      const auto& x = p->exchanges[a.exchange];
      if (p->tensors[x.moves[0].from].dtype == from && p->tensors[x.moves[0].to].dtype == to) found.insert(a.cost_s);
    }
    REQUIRE(found.size() == 1);
    return *found.begin();
  };
  // Two operands are read, one is written. tp=2: each place adds the other's term of an activation, 2 x 24. dp=2: each
  // adds the other's sum of a weight, 40 x 24; with ZeRO 2 two microbatches' terms to its half of it.
  CHECK(seconds(stage_meshes({1}, 2), 0, DType::f32, DType::f32) == doctest::Approx(2 * 24 * (4 + 8) * 1e-3));
  CHECK(seconds(stage_meshes({2}), 0, DType::sum64, DType::sum64) == doctest::Approx(40 * 24 * (8 + 16) * 0.1));
  CHECK(seconds(stage_meshes({2}), 2, DType::f32, DType::sum64) == doctest::Approx(40 * 24 * (4 + 16) * 0.01));
}
