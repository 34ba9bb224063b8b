// Plans for a thousand places and more: what they cost must not grow with the places that take no part.
#include <doctest/doctest.h>

#include <map>

#include "apps/job/planning.h"
#include "apps/lm/model.h"
#include "placement/boxing.h"
#include "runtime/compile/compile.h"
#include "runtime/place/local_plan.h"
#include "runtime/verify/verify.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

Plan plan_175b(const std::string& mesh) {
  App app;
  lm::register_actors(app);
  lm::JobArguments a;
  a.config_path = TROUPE_SOURCE_DIR "/apps/configs/gpt-175b.toml";
  a.mesh = mesh;
  int code = 0;
  const auto prepared = lm::prepare(a, code);
  REQUIRE_MESSAGE(prepared.ok(), prepared.status().message());
  auto plan = lm::make_plan(app, *prepared, "corpus", {});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return std::move(plan->plan);
}

/// Most places that one place meets in any of its exchanges.
std::size_t widest_meeting(const Plan& plan, Rank rank) {
  const auto local = local_plan(plan, rank);
  REQUIRE_MESSAGE(local.ok(), local.status().message());
  std::size_t most = 0;
  for (const auto& a : local->actors)
    for (const auto& peers : a.peers) most = std::max(most, peers.size());
  return most;
}

}  // namespace

TEST_CASE("175 B parameters on 1,024 and on 12,288 places: one place of each stage is played, a steady state once") {
  for (const auto& [mesh, workers, dp] :
       {std::tuple("dp=8,tp=8,pp=16", 1024, 8), std::tuple("dp=96,tp=8,pp=16", 12288, 96)}) {
    CAPTURE(mesh);
    const Plan plan = plan_175b(mesh);
    CHECK(plan.workers() == workers);
    REQUIRE(verify(plan).ok());
    GameOptions training;
    training.every_program = false;
    const auto game = play(plan, training);
    REQUIRE_MESSAGE(game.ok(), game.status().message());
    CHECK(game->places.size() == 16);
    CHECK(game->played_microbatches < 5 * 16);  // of 192 and 16
    CHECK(game->peak_stash.front() == 16);
    CHECK(game->peak_stash.back() == 1);
    // Whom a place meets: those of its dp line, or of its tp line.
    CHECK(widest_meeting(plan, 0) < static_cast<std::size_t>(std::max(dp, 9)));
    CHECK(widest_meeting(plan, workers - 1) < static_cast<std::size_t>(std::max(dp, 9)));
  }
}

TEST_CASE(
    "a boxing along dp lists the places of one dp line; the last place's transfers are as many as the first one's") {
  const Plan plan = plan_175b("dp=96,tp=8,pp=16");
  int gathers = 0, reductions = 0;
  for (const auto& x : plan.exchanges) {
    if (x.rate != Rate::step) continue;
    const auto& move = x.moves[0];
    Layout from = plan.layout(move.from, 0);
    const Layout to = plan.layout(move.to, 0);
    from.dtype = to.dtype;  // the exchange converts
    const bool reduces = plan.reduces(x);
    for (const Rank rank : {to.mesh.ranks.front(), to.mesh.ranks.back()}) {
      const auto group = reduces ? Expected(reduction_group(plan, move.from, move.to, rank))
                                 : boxing_group(from, to, rank);
      REQUIRE_MESSAGE(group.ok(), group.status().message());
      REQUIRE_MESSAGE(group->to.size() <= 96, x.name);
      const auto own = plan_boxing(*group, rank);
      REQUIRE(own.ok());
      REQUIRE_MESSAGE(own->transfers.size() <= 2 * group->from.size(), x.name);
    }
    (reduces ? reductions : gathers) += 1;
  }
  CHECK(reductions > 90);
  CHECK(gathers > 90);
}

TEST_CASE(
    "a plan counts the terms of a language model's gradients: a token of an embedding, blocks of tokens of products "
    "and of the head, both where they share weights") {
  App app;
  lm::register_actors(app);
  for (const bool tied : {false, true})
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2}, {1, 1}}) {
      CAPTURE(tied);
      const auto config = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml",
                                          {"model.seq=1537", std::string("model.tied=") + (tied ? "true" : "false")});
      REQUIRE_MESSAGE(config.ok(), config.status().message());
      CompileOptions o;
      o.stages = stage_meshes(dp);
      const auto plan = compile(lm::build_model(*config, app.ops(), "corpus"), o);
      REQUIRE_MESSAGE(plan.ok(), plan.status().message());
      std::map<std::string, std::int64_t> terms;
      for (const auto& p : plan->params) terms[p.name] = p.terms;
      // 1024 and 513 in halves; 512 three times and 1
      constexpr std::int64_t microbatches = 8, tokens = 1537, of_head = 4, of_product = 4;
      CHECK(terms.at("model.embed_tokens.weight") == microbatches * (tokens + (tied ? of_head : 0)));
      CHECK(terms.at("model.layers.0.mlp.up_proj.weight") == microbatches * of_product);
      CHECK(terms.at("model.norm.weight") == microbatches);
      if (!tied) CHECK(terms.at("lm_head.weight") == microbatches * of_head);
    }
}
