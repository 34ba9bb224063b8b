// Tensor parallelism of the language model: no hint is given, the layouts are found. NU-3: changing tp changes the
// order of some sums, so numbers agree within a tolerance; dp and pp under a given tp change no bit (NU-2).
#include "apps/lm/config.h"
#include "tests/apps/lm_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

// Instrumented code is slow, and what it looks for does not need a hundred steps.
#ifdef __SANITIZE_ADDRESS__
constexpr std::int64_t many = 6, some = 3;
#else
constexpr std::int64_t many = 100, some = 20;
#endif

lm::LmConfig lm_tiny(bool tied) {
  auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml", {tied ? "model.tied=true" : "model.tied=false"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

double worst(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double far = 0;
  for (std::size_t i = 0; i < a.size(); ++i) far = std::max(far, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return far;
}

struct Mesh_ {
  std::vector<std::int64_t> dp;
  std::int64_t tp;
};

std::string text(const Mesh_& m) {
  std::string s = "tp " + std::to_string(m.tp) + ", dp per stage";
  for (auto d : m.dp) s += " " + std::to_string(d);
  return s;
}

}  // namespace

TEST_CASE("NU-3: 100 steps of lm-tiny on any tp agree with one worker to 1e-5 of the loss; NU-2: dp and pp under it agree bitwise") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(false);
  REQUIRE(c.schedule.lr <= 1e-3);
  const auto alone = train(app, c, {1}, many, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  std::map<std::int64_t, Outcome> first;   // by tp
  for (const Mesh_& m : {Mesh_{{1}, 2}, {{1}, 3}, {{1}, 4}, {{2}, 2}, {{1, 1}, 2}, {{2, 2}, 2}}) {
    CAPTURE(text(m));
    const auto other = train(app, c, m.dp, many, 1, m.tp);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    CHECK(worst(other->losses, alone->losses) <= 1e-5);
    CHECK(worst(other->eval, alone->eval) <= 1e-5);
    MESSAGE(text(m) << ": loss within " << worst(other->losses, alone->losses) << ", norm within " << worst(other->norms, alone->norms));
    const auto [it, fresh] = first.try_emplace(m.tp, *other);
    CHECK(it->second == *other);
  }
}

TEST_CASE("NU-3: the same with tied embeddings, 20 steps; uneven stages, and message timing that changes no bit") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(true);
  const auto alone = train(app, c, {1}, some, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  std::map<std::int64_t, Outcome> first;
  for (const Mesh_& m : {Mesh_{{1}, 2}, {{3}, 2}, {{2, 1}, 2}, {{1, 2, 1}, 2}, {{1}, 5}, {{1, 1}, 5}, {{1}, 6}})
    for (std::uint64_t seed : {2, 3}) {
      if (seed == 3 && m.tp > 2) continue;   // many places, many messages: one timing will do
      CAPTURE(text(m));
      CAPTURE(seed);
      const auto other = train(app, c, m.dp, some, seed, m.tp);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(worst(other->losses, alone->losses) <= 1e-5);
      const auto [it, fresh] = first.try_emplace(m.tp, *other);
      CHECK(it->second == *other);
    }
}

TEST_CASE("NU-3: with more places than key-value heads a head lies at several, and query heads are divided among them") {
  runtime::App app;
  lm::register_actors(app);
  auto c = lm_tiny(false);
  c.model.heads = 4;
  c.model.kv_heads = 2;
  c.model.head_dim = 12;
  const auto alone = train(app, c, {1}, some, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  CostModel fast;                        // links that cost nothing: the search divides whatever it can
  fast.intra_node = fast.inter_node = {0, 1e15};
  for (const Mesh_& m : {Mesh_{{1}, 4}, {{2}, 4}, {{1, 1}, 4}}) {
    CAPTURE(text(m));
    const auto plan = plan_of(app, c, m.dp, m.tp, 0, {}, fast);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    bool divided = false;
    for (const auto& t : plan->tensors)
      if (t.name == "layers.1.attention:0") divided = t.sbp[1] == Sbp::S(2, c.model.head_dim);
    CHECK(divided);
    const auto other = train(app, c, *plan, some, 4);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    CHECK(worst(other->losses, alone->losses) <= 1e-5);
    CHECK(worst(other->eval, alone->eval) <= 1e-5);
  }
}

TEST_CASE("without hints a transformer block gets Megatron's layout: column, row, column, row, and moves no byte more") {
  runtime::App app;
  lm::register_actors(app);
  for (const std::int64_t tp : {2, 4, 8}) {
    CAPTURE(tp);
    auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/gpt-1b.toml", {"model.layers=3", "schedule.batch=8", "schedule.lanes=8"});
    REQUIRE_MESSAGE(c.ok(), c.status().message());
    CompileOptions o;
    o.stages = stage_meshes({1}, tp);
    o.lanes = 8;
    const auto plan = compile(lm::build_model(*c, app.ops(), "corpus", false), o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const std::map<std::string, Sbp> layouts = {{"q_proj", Sbp::S(0)}, {"k_proj", Sbp::S(0)}, {"v_proj", Sbp::S(0)}, {"o_proj", Sbp::S(1)},
                                                {"gate_proj", Sbp::S(0)}, {"up_proj", Sbp::S(0)}, {"down_proj", Sbp::S(1)}};
    int seen = 0;
    for (const auto& p : plan->params)
      for (const auto& [name, sbp] : layouts)
        if (p.name.find(name) != std::string::npos) {
          const auto& t = plan->tensors[p.tensor];
          CHECK_MESSAGE((t.sbp[0].kind == sbp.kind && t.sbp[0].dim == sbp.dim), p.name << " (" << to_string(t.sbp) << ")");
          ++seen;
        }
    CHECK(seen == 3 * 7);
    for (const auto& t : plan->tensors)   // norms and the residual stream are on sequence shards
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
      if (from.find("layers.1.add.1.sum") == 0) moved += x.bytes;   // the gradient of what layer 2 reads comes back to layer 1
    }
    CHECK(moved == 4 * 2 * (tp - 1) * activation);
  }
}

TEST_CASE("NU-3: with the vocabulary divided over the pipeline stages, and over tp too, the numbers agree; NU-2: dp changes none") {
  runtime::App app;
  lm::register_actors(app);
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    auto c = lm_tiny(tied);
    const auto alone = train(app, c, {1}, tied ? some : many, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    c.mesh.shared_vocabulary = true;
    std::map<std::pair<std::size_t, std::int64_t>, Outcome> first;   // by stages and tp
    for (const Mesh_& m : {Mesh_{{1}, 1}, {{1, 1}, 1}, {{2, 2}, 1}, {{1, 1, 1}, 1}, {{1, 1}, 2}}) {
      CAPTURE(text(m));
      const auto other = train(app, c, m.dp, tied ? some : many, 7, m.tp);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      MESSAGE(text(m) << ": loss within " << worst(other->losses, alone->losses) << ", norm within " << worst(other->norms, alone->norms));
      CHECK(worst(other->losses, alone->losses) <= 1e-5);
      CHECK(worst(other->eval, alone->eval) <= 1e-5);
      CHECK(first.try_emplace({m.dp.size(), m.tp}, *other).first->second == *other);
    }
    CHECK(first.at({1, 1}) == *alone);
  }
}

TEST_CASE("a vocabulary that the stages divide leaves each an equal part of it, and the pipeline a smaller bubble") {
  runtime::App app;
  lm::register_actors(app);
  auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/gpt-1b.toml", {"model.layers=8", "schedule.batch=16", "schedule.lanes=8"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  std::vector<std::int64_t> most;        // parameter bytes of the fullest place
  std::vector<double> makespan, ideal;   // ideal: all stages equally busy, and 1F1B's bubble
  for (const bool shared : {false, true}) {
    c->mesh.shared_vocabulary = shared;
    CompileOptions o;
    o.stages = stage_meshes({1, 1, 1, 1});
    o.lanes = 8;
    const auto plan = compile(lm::build_model(*c, app.ops(), "corpus", false), o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    REQUIRE(verify(*plan).ok());
    GameOptions options;
    options.every_program = false;
    const auto game = play(*plan, options);
    REQUIRE_MESSAGE(game.ok(), game.status().message());
    makespan.push_back(game->makespan_s);
    double work = 0;
    for (const auto& role : plan->roles)
      for (const auto& a : role.actors)
        if (a.kind == PlanActor::Kind::segment && a.rate == Rate::microbatch && a.program == 0) work += a.cost_s;
    ideal.push_back(work / 4 * (16 + 3));
    most.push_back(0);
    for (const auto& m : game->memory) most.back() = std::max(most.back(), m.parameters);
  }
  const auto& m = c->model;
  const std::int64_t vocabulary = 2 * m.vocab * m.dim * 4, layer = (parameter_count(m) * 4 - vocabulary) / m.layers;
  CHECK(most[1] <= vocabulary / 4 + 2 * layer + (1 << 16));
  CHECK(most[1] < most[0]);
  CHECK(makespan[1] < makespan[0]);
  CHECK(makespan[1] < 1.02 * ideal[1]);
  CHECK(makespan[0] > 1.05 * ideal[0]);
}

TEST_CASE("a vocabulary over stages of different width is refused, and the message says which") {
  runtime::App app;
  lm::register_actors(app);
  auto c = lm_tiny(false);
  c.mesh.shared_vocabulary = true;
  const auto other = train(app, c, {2, 1}, 1, 0);
  REQUIRE_FALSE(other.ok());
  CHECK(other.status().message().find("stage 0 has dp=2, stage 1 dp=1") != std::string::npos);
}
