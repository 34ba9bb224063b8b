// Microbatches ahead of 1F1B: while one waits for an exchange inside its stage, the stage works on another.
#include "runtime/show/ahead.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

constexpr std::int64_t step_microbatches = 8;

Graph step_graph() {
  Shape_ s;
  s.microbatches = step_microbatches;
  s.layers = 4;
  return graph(ops(), s);
}

/// One stage on tp=2. Kernels take their launch, 1 ms each; a message takes `message_s`, of which half is latency.
CompileOptions with_links(double message_s, std::int32_t ahead = 0) {
  CompileOptions o;
  o.stages = stage_meshes({1}, 2);
  o.pipeline.ahead = ahead;
  o.seed = 7;
  o.costs.flops_per_s = o.costs.memory_bytes_per_s = 1e15;
  o.costs.launch_s = 1e-3;
  o.costs.kernels["add_into"] = {{0, 1e3, 1e-12}};  // at full rate: an exchange is its messages
  // Every exchange of a microbatch moves 2 samples of 24 floats, or a part of them.
  o.costs.intra_node = {message_s / 2, 2 * 24 * 4 / std::max(1e-12, message_s / 2)};
  return o;
}

Plan plan_of(const CompileOptions& o) {
  auto p = compile(step_graph(), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const Status s = verify(*p);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return *std::move(p);
}

GameResult game_of(const Plan& p) {
  GameOptions o;
  o.every_program = false;
  auto r = play(p, o);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  return *std::move(r);
}

bool exchanges_inside(const Plan& p) {
  return std::any_of(p.exchanges.begin(), p.exchanges.end(),
                     [](const PlanExchange& x) { return x.program == 0 && x.rate == Rate::microbatch; });
}

}  // namespace

TEST_CASE("with one microbatch ahead a step hides exchanges that none hides with 0, for one more stash slot") {
  const Plan none = plan_of(with_links(2e-3)), one = plan_of(with_links(2e-3, 1));
  REQUIRE(exchanges_inside(none));
  const GameResult alone = game_of(none), both = game_of(one);
  CHECK(alone.compute_s == doctest::Approx(both.compute_s).epsilon(1e-12));
  CHECK(alone.peak_stash == std::vector<std::int32_t>{1});
  CHECK(both.peak_stash == std::vector<std::int32_t>{2});
  const double exposed = alone.step_s - alone.compute_s;
  CHECK(exposed > 0.25 * alone.compute_s);
  CHECK(both.step_s - both.compute_s < 0.5 * exposed);
  for (std::size_t c = 0; c < none.roles[0].channels.size(); ++c) {
    const PlanChannel &before = none.roles[0].channels[c], &after = one.roles[0].channels[c];
    const bool between_passes = before.kind == PlanChannel::Kind::stash && before.program == 0;
    CHECK_MESSAGE(after.slots == before.slots + (between_passes ? 1 : 0), before.name);
  }
}

TEST_CASE("ahead never exceeds the microbatches of a step") {
  const Plan p = plan_of(with_links(2e-3, 100));
  for (const auto& c : p.roles[0].channels)
    if (c.name.starts_with("credit.")) CHECK(c.slots == step_microbatches);
}

TEST_CASE("NU-1 (runs): no bit depends on how far stages run ahead") {
  const auto run = [](std::int32_t ahead, std::uint64_t seed) {
    auto r = train(plan_of(with_links(2e-3, ahead)), ops(), 4, seed, step_microbatches * 2);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return *std::move(r);
  };
  const auto first = run(0, 0);
  for (const std::int32_t ahead : {1, 2, 7}) {
    const auto other = run(ahead, 40 + static_cast<std::uint64_t>(ahead));
    CHECK(other.run.params_hash == first.run.params_hash);
    CHECK(other.eval == first.eval);
    REQUIRE(other.run.steps.size() == first.run.steps.size());
    for (std::size_t s = 0; s < first.run.steps.size(); ++s) {
      CHECK(other.run.steps[s].loss == first.run.steps[s].loss);
      CHECK(other.run.steps[s].grad_norm == first.run.steps[s].grad_norm);
    }
  }
}

TEST_CASE("auto runs ahead as far as each further microbatch makes the step 1 % shorter, and as it fits") {
  const auto choose = [](const CompileOptions& o, std::int64_t bytes_max = 0) {
    auto c = choose_ahead(step_graph(), o, bytes_max);
    REQUIRE_MESSAGE(c.ok(), c.status().message());
    return *std::move(c);
  };
  const AheadChoice slow = choose(with_links(2e-3));
  const std::int32_t chosen = slow.plan.pipeline.ahead;
  CHECK(chosen >= 1);
  REQUIRE(slow.tried.size() >= static_cast<std::size_t>(chosen) + 1);
  for (const AheadTried& t : slow.tried) CHECK(t.step_s == game_of(plan_of(with_links(2e-3, t.ahead))).step_s);
  for (std::int32_t a = 1; a <= chosen; ++a) {
    CHECK(slow.tried[a].step_s <= slow.tried[a - 1].step_s * (1 - ahead_gain_min));
    CHECK(slow.tried[a].place_bytes > slow.tried[a - 1].place_bytes);
  }
  // The search ended because the next one gains too little, or because a step has no more microbatches.
  REQUIRE(slow.tried.size() == static_cast<std::size_t>(std::min<std::int64_t>(chosen + 2, step_microbatches)));
  if (chosen + 1 < step_microbatches)
    CHECK(slow.tried[chosen + 1].step_s > slow.tried[chosen].step_s * (1 - ahead_gain_min));

  const auto needs = needed_bytes(plan_of(with_links(2e-3)));
  REQUIRE(needs.ok());
  CHECK(*needs > slow.tried[0].place_bytes);  // of two places
  const AheadChoice tight = choose(with_links(2e-3), *needs);
  CHECK(tight.plan.pipeline.ahead == 0);
  REQUIRE(tight.tried.size() == 2);
  CHECK(tight.tried[0].fits);
  CHECK_FALSE(tight.tried[1].fits);
  CHECK(ahead_text(tight.tried, 0, "in a box").find("wait for exchanges\nmemory: in a box\n") != std::string::npos);
  CHECK(ahead_text(tight.tried, 0, "").find("does not fit") != std::string::npos);
  const AheadChoice none = choose(with_links(2e-3), *needs - 1);
  CHECK(none.plan.pipeline.ahead == 0);
  REQUIRE(none.tried.size() == 1);
  CHECK_FALSE(none.tried[0].fits);
  CHECK(choose(with_links(2e-3), 1 << 30).plan.pipeline.ahead == chosen);

  CHECK(choose(with_links(0)).plan.pipeline.ahead == 0);

  CompileOptions stages = with_links(2e-3);
  stages.stages = stage_meshes({1, 1});
  const AheadChoice pipeline = choose(stages);  // its exchanges lie between stages: 1F1B hides them
  CHECK(pipeline.plan.pipeline.ahead == 0);
  CHECK(pipeline.tried.empty());
}

TEST_CASE("an order of passes leaves nothing to run ahead with: refused, with its name") {
  for (const Pipeline p : {Pipeline{Pipeline::Kind::zero_bubble, 1, 1}, Pipeline{Pipeline::Kind::one_f_one_b, 1, -1}}) {
    CompileOptions o = with_links(0);
    o.stages = stage_meshes({1, 1});
    o.pipeline = p;
    const auto made = compile(step_graph(), o);
    REQUIRE(!made.ok());
    CHECK(made.status().message().find("microbatches ahead") != std::string::npos);
  }
  Plan p = plan_of(with_links(0));
  p.pipeline.ahead = -1;
  CHECK(verify(p).message().find("-1 microbatches ahead") != std::string::npos);
}
