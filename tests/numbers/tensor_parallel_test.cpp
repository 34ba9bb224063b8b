// Tensor parallelism of the language model: no hint is given, the layouts are found. NU-3 (model axes): changing tp
// changes the order of some sums, so numbers agree within a tolerance; dp and pp under a given tp change no bit (NU-2
// topologies).
#include "tests/numbers/lm_run.h"

using namespace troupe;
using namespace troupe::test;

TEST_CASE(
    "NU-3: 100 steps of lm-tiny on any tp agree with one worker to 1e-5 of the loss and 3e-5 of the gradient norm; "
    "NU-2: dp and pp under it agree bitwise") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(false);
  REQUIRE(c.schedule.lr <= 1e-3);
  const auto alone = train(app, c, {1}, many, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  std::map<std::int64_t, Outcome> first;  // by tp
  for (const DpTp& m : {DpTp{{1}, 2}, {{1}, 3}, {{1}, 4}, {{2}, 2}, {{1, 1}, 2}, {{2, 2}, 2}}) {
    CAPTURE(text(m));
    const auto other = train(app, c, m.dp, many, 1, m.tp);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    check_near(*other, *alone);
    // Each tp place tells of the terms that it adds: the largest of all is about that of one worker.
    for (const auto& [name, scale] : alone->sums.scales) {
      CAPTURE(name);
      CHECK(other->sums.scales.at(name).peak == doctest::Approx(scale.peak).epsilon(1e-2));
    }
    MESSAGE(text(m) << ": loss within " << worst(other->losses, alone->losses) << ", norm within "
                    << worst(other->norms, alone->norms));
    const auto [it, fresh] = first.try_emplace(m.tp, *other);
    CHECK(it->second == *other);
  }
}

TEST_CASE("NU-3: the same with tied embeddings, 10 steps; uneven stages, and message timing that changes no bit") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(true);
  const auto alone = train(app, c, {1}, some, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  std::map<std::int64_t, Outcome> first;
  for (const DpTp& m : {DpTp{{1}, 2}, {{3}, 2}, {{2, 1}, 2}, {{1, 2, 1}, 2}, {{1}, 5}, {{1, 1}, 5}, {{1}, 6}})
    for (std::uint64_t seed : {2, 3}) {
      if (seed == 3 && m.tp > 2) continue;  // many places, many messages: one timing will do
      CAPTURE(text(m));
      CAPTURE(seed);
      const auto other = train(app, c, m.dp, some, seed, m.tp);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      check_near(*other, *alone);
      const auto [it, fresh] = first.try_emplace(m.tp, *other);
      CHECK(it->second == *other);
    }
}

TEST_CASE(
    "NU-3: with more places than key-value heads a head lies at several, and query heads are divided among them") {
  runtime::App app;
  lm::register_actors(app);
  auto c = lm_tiny(false);
  c.model.heads = 4;
  c.model.kv_heads = 2;
  c.model.head_dim = 12;
  const auto alone = train(app, c, {1}, some, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  CostModel fast;  // links that cost nothing: the search divides whatever it can
  fast.intra_node = fast.inter_node = {0, 1e15};
  for (const DpTp& m : {DpTp{{1}, 4}, {{2}, 4}, {{1, 1}, 4}}) {
    CAPTURE(text(m));
    const auto plan = plan_of(app, c, m.dp, m.tp, 0, {}, fast);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    bool divided = false;
    for (const auto& t : plan->tensors)
      if (t.name == "layers.1.attention:0") divided = t.sbp[1] == Sbp::S(2, c.model.head_dim);
    CHECK(divided);
    const auto other = train(app, c, *plan, some, 4);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    check_near(*other, *alone);
  }
}

TEST_CASE(
    "without hints a transformer block gets Megatron's layout: column, row, column, row, and moves no byte more") {
  runtime::App app;
  lm::register_actors(app);
  for (const std::int64_t tp : {2, 4, 8}) {
    CAPTURE(tp);
    auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/gpt-1b.toml", {"model.layers=3", "schedule.batch=8"});
    REQUIRE_MESSAGE(c.ok(), c.status().message());
    CompileOptions o;
    o.stages = stage_meshes({1}, tp);
    const auto plan = compile(lm::build_model(*c, app.ops(), "corpus"), o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const std::map<std::string, Sbp> layouts = {
        {"q_proj", Sbp::S(0)},    {"k_proj", Sbp::S(0)},  {"v_proj", Sbp::S(0)},   {"o_proj", Sbp::S(1)},
        {"gate_proj", Sbp::S(0)}, {"up_proj", Sbp::S(0)}, {"down_proj", Sbp::S(1)}};
    int seen = 0;
    for (const auto& p : plan->params)
      for (const auto& [name, sbp] : layouts)
        if (p.name.find(name) != std::string::npos) {
          const auto& t = plan->tensors[p.tensor];
          CHECK_MESSAGE((t.sbp[0].kind == sbp.kind && t.sbp[0].dim == sbp.dim),
                        p.name << " (" << to_string(t.sbp) << ")");
          ++seen;
        }
    CHECK(seen == 3 * 7);
    for (const auto& t : plan->tensors)  // norms and the residual stream are on sequence shards
      if (t.name == "layers.1.rmsnorm:0" || t.name == "layers.1.add" || t.name == "layers.1.rmsnorm.grad")
        CHECK_MESSAGE(t.sbp[0] == Sbp::S(1), t.name << " (" << to_string(t.sbp) << ")");
    // Shoeybi et al.: two all-reduces of (B, T, C) forward and two backward, each 2 (n - 1) times its bytes; here each
    // as a reduce-scatter and an all-gather with the norms between them on sequence shards.
    const auto& m = c->model;
    const std::int64_t activation = c->schedule.microbatch * m.seq * m.dim * 4;
    std::int64_t moved = 0;
    for (const auto& x : plan->exchanges) {
      if (x.program != 0 || x.rate != Rate::microbatch) continue;
      const auto& from = plan->tensors[x.moves[0].from].name;
      if (from.find("layers.1.") == 0 && from.find("add.1") == std::string::npos) moved += x.bytes;
      // the gradient of what layer 2 reads comes back to layer 1
      if (from.find("layers.1.add.1.sum") == 0) moved += x.bytes;
    }
    CHECK(moved == 4 * 2 * (tp - 1) * activation);
  }
}
