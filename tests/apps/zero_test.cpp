// ZeRO as a layout: the optimizer's state and the update divided over dp, parameters gathered in place.
#include "tests/apps/lm_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr std::int64_t steps = 3;   // instrumented code is slow
#else
constexpr std::int64_t steps = 10;
#endif

lm::LmConfig config(bool tied) {
  auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml", {tied ? "model.tied=true" : "model.tied=false"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

Plan plan_of(const runtime::App& app, const lm::LmConfig& c, std::int64_t dp, std::int32_t zero) {
  CompileOptions o;
  o.stages = stage_meshes({dp});
  o.lanes = static_cast<std::int32_t>(c.schedule.lanes);
  o.zero = zero;
  auto p = compile(lm::build_model(c, app.ops(), corpus(), false), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

}  // namespace

TEST_CASE("NU-2: ZeRO 1 changes no bit on any dp and pp, tied and untied, under random message timing") {
  runtime::App app;
  lm::register_actors(app);
  for (const bool tied : {false, true}) {
    const auto c = config(tied);
    const auto alone = train(app, c, {1}, steps, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    std::uint64_t seed = 5;
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2}, {3}, {4}, {8}, {2, 2}, {3, 1}, {1, 2, 4}}) {
      std::string what = tied ? "tied, dp per stage" : "untied, dp per stage";
      for (auto d : dp) what += " " + std::to_string(d);
      CAPTURE(what);
      const auto other = train(app, c, dp, steps, ++seed, 1, 1);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == *alone);
    }
    const auto tp = train(app, c, {1}, steps, 0, 2);
    REQUIRE(tp.ok());
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2}, {3, 3}}) {
      const auto other = train(app, c, dp, steps, ++seed, 2, 1);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == *tp);
    }
  }
}

TEST_CASE("ZeRO 1 divides the optimizer's state by dp, and the gathered gradients are gone") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = config(false);
  for (const std::int64_t dp : {2, 4}) {
    CAPTURE(dp);
    const auto all = local_plan(plan_of(app, c, dp, 0), 0), shared = local_plan(plan_of(app, c, dp, 1), 0);
    REQUIRE(all.ok());
    REQUIRE(shared.ok());
    CHECK(all->memory.optimizer == 2 * all->memory.parameters);
    // Rows divide evenly here; what is left is the alignment of each share.
    const auto slack = static_cast<std::int64_t>(plan_of(app, c, dp, 1).params.size()) * 2 * tensor_alignment;
    CHECK(shared->memory.optimizer >= all->memory.optimizer / dp);
    CHECK(shared->memory.optimizer <= all->memory.optimizer / dp + slack);
    CHECK(shared->memory.parameters == all->memory.parameters);
    CHECK(all->memory.gradients - shared->memory.gradients >= all->memory.parameters - slack);
    CHECK(all->memory.total() - shared->memory.total() >=
          all->memory.optimizer - all->memory.optimizer / dp + all->memory.parameters - 2 * slack);
  }
}

TEST_CASE("the gather of an update is a boxing that the plan shows: S(0) -> B over dp") {
  runtime::App app;
  lm::register_actors(app);
  const auto p = plan_of(app, config(false), 4, 1);
  std::int64_t gathered = 0, bytes = 0;
  for (const auto& x : p.exchanges)
    if (x.name.find(".all_gather") != std::string::npos) {
      CHECK(x.collective == Collective::all_gather);
      gathered += static_cast<std::int64_t>(x.moves.size());
      bytes += x.bytes;
    }
  CHECK(gathered == static_cast<std::int64_t>(p.params.size()));
  std::int64_t all = 0;
  for (const auto& param : p.params) all += elements(p.tensors[param.tensor].shape) * 4;
  CHECK(bytes == 3 * all);
}
