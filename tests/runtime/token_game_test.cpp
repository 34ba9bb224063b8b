// The game that leaves out what a steady state repeats, against the game that plays everything.
#include "runtime/simulate/token_game.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <limits>
#include <random>

#include "runtime/simulate/game_period.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

struct Drawn {
  Plan plan;
  GameOptions options;
  std::string text;
};

/// A pipeline with many microbatches, costs that differ from stage to stage, and one of the ways to play it.
Drawn draw(const kernels::OpSet& ops, unsigned seed) {
  std::mt19937 random(seed);
  auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); };
  const std::int64_t stages = 1 + below(4), dp = 1 + below(2), tp = below(3) == 0 ? 2 : 1;
  Shape_ s;
  s.layers = stages + below(4);
  s.microbatches = dp * (90 + below(60));
  s.samples = 1;
  s.width = 4 + below(5);
  s.hidden = 4 + below(60);
  s.tied = below(3) == 0;
  CompileOptions o;
  o.stages = stage_meshes(std::vector<std::int64_t>(static_cast<std::size_t>(stages), dp), tp);
  o.zero = static_cast<std::int32_t>(below(2));
  o.costs.flops_per_s = 1e6 * static_cast<double>(1 + below(1000));
  o.costs.launch_s = 1e-7 * static_cast<double>(below(100));
  o.costs.intra_node = {1e-6 * static_cast<double>(below(40)), 1e4 * static_cast<double>(1 << below(12))};
  if (below(3) == 0) o.costs.intra_node.link_bytes_per_s = 1e4 * static_cast<double>(1 << below(12));
  if (below(3) == 0) o.costs.handover_s = 1e-6 * static_cast<double>(1 + below(20));
  if (below(4) == 0) o.costs.places_per_node = 2;
  if (below(4) == 0) o.costs.odd_links = {{0, 1, {1e-4, 1e5}}};
  o.pipeline.ahead = static_cast<std::int32_t>(below(3));
  o.pipeline.weights_apart = below(2) == 0;
  auto p = compile(graph(ops, s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  GameOptions play;
  play.every_program = below(2) == 0;
  play.steps = 1 + below(3);
  play.hop_s = below(2) ? 0 : 1e-6 * static_cast<double>(below(300));
  if (below(4) == 0) play.forward_s = 1e-3, play.backward_s = 1e-3 * static_cast<double>(1 + below(3));
  return {*std::move(p), play,
          "seed " + std::to_string(seed) + ": " + std::to_string(stages) + " stages, dp " + std::to_string(dp) +
              ", tp " + std::to_string(tp) + ", " + std::to_string(s.microbatches) + " microbatches, " +
              std::to_string(o.pipeline.ahead) + " ahead, apart " + std::to_string(o.pipeline.weights_apart)};
}

bool same(const GameAct& a, const GameAct& b) {
  return a.rank == b.rank && a.actor == b.actor && a.pass == b.pass && a.shared == b.shared && a.program == b.program &&
         a.step == b.step && a.microbatch == b.microbatch && a.begin_s == b.begin_s && a.end_s == b.end_s;
}

}  // namespace

TEST_CASE(
    "GP-2 (exact): with the steady state repeated, 150 random pipelines give what playing every microbatch gives, to "
    "the bit") {
  const auto ops = kernels::standard_ops();
  int shorter = 0, busy = 0;
  for (unsigned seed = 1; seed <= 150; ++seed) {
    if (!test::is_drawn(seed)) continue;
    Drawn d = draw(ops, seed);
    INFO(d.text);
    const auto few = play(d.plan, d.options);
    d.options.every_microbatch = true;
    const auto all = play(d.plan, d.options);
    d.options.every_microbatch = false;
    REQUIRE_MESSAGE(few.ok(), few.status().message());
    REQUIRE_MESSAGE(all.ok(), all.status().message());
    const bool fewer = few->played_microbatches < all->played_microbatches;
    shorter += fewer;
    busy += fewer && few->messages_s > 0.5 * few->step_s;
    CHECK(few->step_s == all->step_s);
    CHECK(few->makespan_s == all->makespan_s);
    CHECK(few->bubble == all->bubble);
    CHECK(few->compute_s == all->compute_s);
    CHECK(few->messages_s == all->messages_s);
    CHECK(few->peak_stash == all->peak_stash);
    CHECK(few->places == all->places);
    REQUIRE(few->acts.size() == all->acts.size());
    for (std::size_t i = 0; i < few->acts.size(); ++i) REQUIRE_MESSAGE(same(few->acts[i], all->acts[i]), "act " << i);
  }
  MESSAGE(shorter << " were played with fewer microbatches, " << busy
                  << " of these have a port that is busy half the time");
  CHECK(shorter > test::of_drawn(75));
  CHECK(busy > test::of_drawn(20));
}

TEST_CASE("a pipeline of 4,000 microbatches is played with as many as it takes to fill, settle and drain") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.layers = 4;
  s.microbatches = 4000;
  s.samples = 1;
  const auto p = plan(ops, s, {1, 1, 1, 1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  GameOptions o;
  o.forward_s = 1;
  o.backward_s = 2;
  const auto r = play(*p, o);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  CHECK(r->played_microbatches < 64);
  CHECK(r->makespan_s == doctest::Approx((4000 + 3) * 3));  // 1F1B: (M + S - 1)(tF + tB)
  CHECK(r->peak_stash == std::vector<std::int32_t>{4, 3, 2, 1});
}

TEST_CASE("a game that could outlast virtual time is refused before it is played, and says how long it could take") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.layers = 4;
  s.microbatches = 4000;
  s.samples = 1;
  const auto p = plan(ops, s, {1, 1, 1, 1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  GameOptions o;
  o.forward_s = o.backward_s = 1e5;  // 2 steps of 4000 microbatches at 4 places: 6.4e9 s
  const auto fits = play(*p, o);
  REQUIRE_MESSAGE(fits.ok(), fits.status().message());
  CHECK(fits->makespan_s == doctest::Approx((4000 + 3) * 2e5));
  o.forward_s = o.backward_s = 1.4e5;  // 8.96e9 s
  CHECK(play(*p, o).ok());
  o.forward_s = o.backward_s = 1.41e5;  // 9.024e9 s
  CHECK(play(*p, o).status().code() == Code::exhausted);
  o.forward_s = o.backward_s = 1e6;
  for (const bool every : {false, true}) {
    o.every_microbatch = every;
    const Status refused = play(*p, o).status();
    CHECK(refused.code() == Code::exhausted);
    CHECK_MESSAGE(refused.message().find("of 2 steps, one after the other, take 6.4e+10 s, and simulated time ends at "
                                         "9e+09 s") != std::string::npos,
                  refused.message());
  }
  GameOptions hops;
  hops.hop_s = 1e-3;
  CHECK(play(*p, hops).ok());
  hops.hop_s = 1e300;
  CHECK(play(*p, hops).status().code() == Code::exhausted);
  CHECK(play(*p).ok());
  Plan costly = *p;
  for (auto& a : costly.roles[0].actors) a.cost_s = 1e6 - 1;  // the largest that verify lets pass
  CHECK(play(costly).status().code() == Code::exhausted);
}

TEST_CASE("GP-1 (no guess): where places run other microbatches than each other, all are played") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.microbatches = 200;
  s.samples = 1;
  const auto p = plan(ops, s, {2, 1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const auto r = play(*p);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  CHECK(r->played_microbatches == 200);
}

namespace {

/// One layer of a row for each of `dp` places, without owners and with owners that say what is so without them.
std::array<Plan, 2> one_layer(std::int64_t dp, std::int64_t microbatches, std::int32_t zero) {
  Graph g(ops());
  g.program("train", {microbatches, 1});
  g.unit("layer");
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 8}}}}, {{"stream", std::string("x")}})[0];
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {1, dp}}}}, {{"stream", std::string("t")}})[0];
  const Value y = g.op("linear", {x, g.param("w", {dp, 8}, Init::normal(0.2f))})[0];
  g.minimize(g.op("mse_loss", {y, t}, {{"scale", 1.0 / static_cast<double>(microbatches)}})[0], {});
  CompileOptions o;
  o.stages = stage_meshes({dp});
  o.zero = zero;
  auto without = compile(g, o);
  REQUIRE_MESSAGE(without.ok(), without.status().message());
  auto& owners = o.owners.emplace_back();
  for (std::int64_t m = 0; m < microbatches; ++m) owners.push_back(static_cast<std::int32_t>(m % dp));
  auto with = compile(g, o);
  REQUIRE_MESSAGE(with.ok(), with.status().message());
  return {*std::move(without), *std::move(with)};
}

}  // namespace

TEST_CASE("where a plan names owners every place is played, and places that behave alike take the time of one") {
  GameOptions o;
  o.every_program = false;
  for (const std::int32_t zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    const auto plans = one_layer(4, 12, zero);
    const auto one = play(plans[0], o), all = play(plans[1], o);
    REQUIRE_MESSAGE(one.ok(), one.status().message());
    REQUIRE_MESSAGE(all.ok(), all.status().message());
    CHECK(one->places.size() == 1);
    CHECK(all->places.size() == 4);
    CHECK(all->step_s == one->step_s);
    CHECK(all->makespan_s == one->makespan_s);
    CHECK(all->messages_s == one->messages_s);
  }
}

TEST_CASE(
    "a cycle is found when a state returns within one step, and repeated only where it divides what is left out") {
  CycleSearch search;
  const std::vector<std::int64_t> a = {1, 2}, b = {1, 3};
  search.see(0, 5, 100, a);
  search.see(0, 6, 110, b);
  CHECK(search.cycles().empty());
  search.see(1, 7, 120, a);  // another step: no return
  CHECK(search.cycles().empty());
  search.see(1, 8, 130, b);
  search.see(1, 9, 150, a);
  REQUIRE(search.cycles().size() == 1);
  CHECK(search.cycles()[0].step == 1);
  CHECK(search.cycles()[0].from_ns == 120);
  CHECK(search.cycles()[0].to_ns == 150);
  CHECK(search.cycles()[0].microbatches == 2);

  PlanActor actor;
  std::vector<PlayedAct> acts = {
      {0, &actor, false, 0, 0, 1, 5}, {0, &actor, false, 0, 1, 11, 19}, {0, &actor, false, 0, 2, 21, 25}};
  std::vector<std::int64_t> commits = {30};
  const std::vector<Cycle> cycles = {{0, 10, 20, 1}};
  CHECK_FALSE(repeat(cycles, 2, 3, 0, acts, commits));            // a step without a cycle
  CHECK_FALSE(repeat({{0, 10, 20, 2}}, 1, 3, 0, acts, commits));  // 3 is no multiple of 2
  CHECK(acts.size() == 3);
  REQUIRE(repeat(cycles, 1, 3, 0, acts, commits));
  REQUIRE(acts.size() == 6);
  CHECK(commits == std::vector<std::int64_t>{60});
  std::vector<std::pair<std::int32_t, std::int64_t>> when;
  for (const auto& act : acts) when.push_back({act.microbatch, act.begin_ns});
  std::sort(when.begin(), when.end());
  CHECK(when ==
        std::vector<std::pair<std::int32_t, std::int64_t>>{{0, 1}, {1, 11}, {2, 21}, {3, 31}, {4, 41}, {5, 51}});
}

namespace {

GameResult played(const Shape_& s, const CompileOptions& o, const GameOptions& options = {}) {
  const auto p = compile(graph(ops(), s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  auto r = play(*p, options);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  return *std::move(r);
}

double step_of(const Shape_& s, const CompileOptions& o) {
  GameOptions training;
  training.every_program = false;
  return played(s, o, training).step_s;
}

std::string ranks(const GameResult& r) { return fmt::format("{}", fmt::join(r.places, ", ")); }

}  // namespace

TEST_CASE("a slow link makes a step as long whichever replica has it, within itself or to another one") {
  Shape_ s;
  s.microbatches = 8;
  CompileOptions o;
  o.costs.launch_s = 1e-4;
  for (const std::int64_t tp : {std::int64_t{2}, std::int64_t{4}}) {
    CAPTURE(tp);
    o.stages = stage_meshes({2}, tp);
    const auto with_odd = [&](std::int64_t a, std::int64_t b) {
      CompileOptions odd = o;
      odd.costs.odd_links = {{static_cast<Rank>(a), static_cast<Rank>(b), {5e-3, 1e9, 1e5}}};
      return step_of(s, odd);
    };
    const double without = step_of(s, o), within = with_odd(0, 1), between = with_odd(0, tp);
    CHECK(within > 2 * without);
    CHECK(between > 1.05 * without);
    for (std::int64_t a = 0; a < tp; ++a) {
      for (std::int64_t b = 0; b < a; ++b)
        CHECK(with_odd(tp + a, tp + b) == doctest::Approx(with_odd(a, b)).epsilon(0.01));
      if (a > 0) CHECK(with_odd(a, a - 1) > 2 * without);
      CHECK(with_odd(a, tp + a) > 1.05 * without);
    }
  }
}

TEST_CASE("places are played that have other links than those of other replicas, and those that the rest is alike to") {
  Shape_ s;
  s.microbatches = 8;
  CompileOptions o;
  o.costs.launch_s = 1e-4;
  const LinkCost slow = {5e-3, 1e9, 1e5}, slower = {50e-3, 1e9, 1e4};
  const auto with = [&](const std::vector<std::int64_t>& dp, std::int64_t tp, std::vector<OddLink> links) {
    CompileOptions odd = o;
    odd.stages = stage_meshes(dp, tp);
    odd.costs.odd_links = std::move(links);
    return played(s, odd);
  };
  const GameResult one = with({4}, 2, {{4, 5, slow}});
  REQUIRE(one.places == std::vector<Rank>{0, 4, 5});
  CHECK(one.stands_for == std::vector<std::vector<Rank>>{{0, 1, 2, 3, 6, 7}, {4}, {5}});
  // Between two replicas, neither of which is the first.
  const GameResult between = with({4}, 2, {{2, 4, slow}});
  CHECK(ranks(between) == "0, 2, 4, 3, 5");
  CHECK(between.step_s == doctest::Approx(with({4}, 2, {{0, 2, slow}}).step_s).epsilon(0.01));
  // Two replicas with odd links of their own: of other costs, and at other places.
  const GameResult costs = with({2}, 2, {{0, 1, slow}, {2, 3, slower}});
  CHECK(ranks(costs) == "0, 2, 1, 3");
  CHECK(costs.step_s == doctest::Approx(with({2}, 2, {{0, 1, slower}, {2, 3, slow}}).step_s).epsilon(0.01));
  CHECK(with({2}, 4, {{0, 1, slow}, {6, 7, slow}}).places.size() == 8);
  // Widths that differ from stage to stage.
  CHECK(ranks(with({3, 2}, 2, {{2, 3, slow}})) == "0, 2, 4, 3, 6, 8, 9");
}

TEST_CASE("a replica whose places lie on two nodes exchanges between nodes, though the first one's lie on one") {
  Shape_ two, one;
  two.microbatches = 8;
  one.microbatches = 4;
  CompileOptions o;
  o.costs.launch_s = 1e-4;
  o.costs.inter_node = {5e-3, 1e9};
  o.stages = stage_meshes({2}, 2);
  o.costs.places_per_node = 3;
  const double second_divided = step_of(two, o);
  CHECK(ranks(played(two, o)) == "0, 2, 3");
  o.stages = stage_meshes({1}, 2);
  o.costs.places_per_node = 1;
  CHECK(second_divided >= 0.99 * step_of(one, o));
}

TEST_CASE("a microbatch waits for each link of the kind that its two places have, as computed by hand") {
  Shape_ s;
  s.microbatches = 1;
  s.samples = 50;
  s.width = 24;  // 4,800 bytes a message: more than an eager one
  CompileOptions o;
  o.stages = stage_meshes({1, 1, 1});
  o.costs.launch_s = 1e-3;
  o.costs.nodes = {0, 0, 1};
  const double inf = std::numeric_limits<double>::infinity();
  o.costs.intra_node = o.costs.inter_node = {0, inf};
  const double computing_s = step_of(s, o);
  // One message forward and one backward between neighbours: two within a node, two between nodes.
  const double bytes = static_cast<double>(s.samples * s.width * 4);
  o.costs.intra_node = {2e-3, 1e6};
  const double inside_s = 2 * (2e-3 + bytes / 1e6);
  CHECK(step_of(s, o) == doctest::Approx(computing_s + inside_s).epsilon(1e-6));
  o.costs.inter_node = {50e-3, 2e5};
  o.costs.inter_node.rendezvous_s = 30e-3;
  const double between_s = 2 * (50e-3 + 30e-3 + bytes / 2e5);
  CHECK(step_of(s, o) == doctest::Approx(computing_s + inside_s + between_s).epsilon(1e-6));
  o.costs.nodes = {0, 1, 0};  // now no neighbours share a node
  CHECK(step_of(s, o) == doctest::Approx(computing_s + 2 * between_s).epsilon(1e-6));
}

TEST_CASE("stages whose ranks are numbered replica by replica play as others, but for their links") {
  Shape_ s;
  s.microbatches = 8;
  CompileOptions o;
  o.costs.launch_s = 1e-4;
  o.costs.intra_node = {1e-5, 1e9};
  const auto step_s = [&](const std::vector<std::int64_t>& dp, RankOrder order) {
    o.stages = stage_meshes(dp, {{"tp", 2}}, order);
    return step_of(s, o);
  };
  o.costs.nodes.assign(8, 0);
  for (const auto& dp : {std::vector<std::int64_t>{2, 2}, {1, 2}, {3, 1}})
    CHECK(step_s(dp, RankOrder::replica_by_replica) ==
          doctest::Approx(step_s(dp, RankOrder::stage_by_stage)).epsilon(0.01));
  // Of two machines with four places each, one has a replica of both stages, or both replicas of a stage. A pipeline
  // pays latency for its microbatches one after the other, sums of gradients once.
  o.costs.nodes = {0, 0, 0, 0, 1, 1, 1, 1};
  o.costs.inter_node = {20e-3, 1e9};
  CHECK(step_s({2, 2}, RankOrder::replica_by_replica) < step_s({2, 2}, RankOrder::stage_by_stage));
}
