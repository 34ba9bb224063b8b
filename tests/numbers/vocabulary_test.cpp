// The vocabulary of embedding and cross-entropy divided over the pipeline stages, and over tp beside it.
#include "tests/numbers/lm_run.h"

using namespace troupe;
using namespace troupe::test;

TEST_CASE(
    "NU-3 (model axes): with the vocabulary divided over the pipeline stages, and over tp too, the numbers agree; NU-2 "
    "(topologies): dp changes none") {
  runtime::App app;
  lm::register_actors(app);
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    auto c = lm_tiny(tied);
    const auto alone = train(app, c, {1}, tied ? some : many, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    c.mesh.shared_vocabulary = true;
    std::map<std::pair<std::size_t, std::int64_t>, Outcome> first;  // by stages and tp
    for (const DpTp& m : {DpTp{{1}, 1}, {{1, 1}, 1}, {{2, 2}, 1}, {{1, 1, 1}, 1}, {{1, 1}, 2}}) {
      CAPTURE(text(m));
      const auto other = train(app, c, m.dp, tied ? some : many, 7, m.tp);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      MESSAGE(text(m) << ": loss within " << worst(other->losses, alone->losses) << ", norm within "
                      << worst(other->norms, alone->norms));
      check_near(*other, *alone);
      CHECK(first.try_emplace({m.dp.size(), m.tp}, *other).first->second == *other);
    }
    CHECK(first.at({1, 1}) == *alone);
  }
}

TEST_CASE("a vocabulary that the stages divide leaves each an equal part of it, and the pipeline a smaller bubble") {
  runtime::App app;
  lm::register_actors(app);
  auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/gpt-1b.toml", {"model.layers=8", "schedule.batch=16"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  std::vector<std::int64_t> most;       // parameter bytes of the fullest place
  std::vector<double> makespan, ideal;  // ideal: all stages equally busy, and 1F1B's bubble
  for (const bool shared : {false, true}) {
    c->mesh.shared_vocabulary = shared;
    CompileOptions o;
    o.stages = stage_meshes({1, 1, 1, 1});
    const auto plan = compile(lm::build_model(*c, app.ops(), "corpus"), o);
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
  CHECK(other.status().message().find("stage 0 has {tp: 1, dp: 2}, stage 1 {tp: 1, dp: 1}") != std::string::npos);
}
