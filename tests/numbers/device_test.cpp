// Jobs whose places compute as on a GPU, on fibers: the bits of the same job on the host's processor, wherever its
// slots lie.
#include "tests/fiber_jobs.h"
#include "tests/numbers/saved_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t steps = unless_instrumented(3, 2);

/// Small, and with all that a model has: fibers are slow.
lm::LmConfig small(bool tied) {
  auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml",
                           {"model.layers=2", "model.dim=24", "model.heads=4", "model.kv_heads=2", "model.head_dim=6",
                            "model.ffn=40", "model.seq=16", "schedule.batch=4", "eval.every=1", "eval.batches=1",
                            "sample.tokens=3", tied ? "model.tied=true" : "model.tied=false"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

}  // namespace

TEST_CASE("a job on a device has the bits of the job on the host, with any dp, pp, tp and ZeRO") {
  runtime::App app;
  lm::register_actors(app);
  const auto device = test::fibers_alone();
  struct Case {
    std::vector<std::int64_t> dp;
    std::int64_t tp = 1;
    std::int32_t zero = 0;
    bool tied = false;
  };
  for (const auto& [dp, tp, zero, tied] : std::vector<Case>{{{1}},
                                                            {{1}, 1, 0, true},
                                                            {{2}, 1, 1},
                                                            {{3}, 1, 2},
                                                            {{2}, 1, 3, true},
                                                            {{1, 1}},
                                                            {{2, 1}, 1, 1},
                                                            {{1}, 2},
                                                            {{1, 1}, 2, 0, true}}) {
    if (unless_instrumented(0, 1) && (dp.size() > 1 || tied)) continue;  // fibers that sanitizers watch are slow
    CAPTURE(text(DpTp{dp, tp}));
    CAPTURE(zero);
    const lm::LmConfig c = small(tied);
    const auto plan = plan_of(app, c, dp, tp, zero);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const auto host = train(app, c, *plan, steps, 1);
    REQUIRE_MESSAGE(host.ok(), host.status().message());
    const auto other = train(app, c, *plan, steps, 2, device);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    CHECK(other->losses == host->losses);
    CHECK(other->norms == host->norms);
    CHECK(other->eval == host->eval);
    CHECK(other->text == host->text);
    CHECK(other->hash == host->hash);
    CHECK(other->sums == host->sums);
  }
}

TEST_CASE("checkpoints go from the host to a device and back, and the job has the bits of one that stayed") {
  const auto device = test::fibers_alone();
  const lm::LmConfig c = small(false);
  for (const Topology& t : {Topology{"1 worker", {1}}, Topology{"dp=2, ZeRO 1", {2}, 1, 1}, Topology{"pp=2", {1, 1}},
                            Topology{"dp=2, ZeRO 3", {2}, 1, 3}, Topology{"tp=2", {1}, 2}}) {
    CAPTURE(t.name);
    SimStorage storage;
    const auto stayed = run(c, t, storage, {.into = "/stayed", .steps = 3});
    REQUIRE_MESSAGE(stayed.ok(), stayed.status().message());
    const auto first = run(c, t, storage, {.into = "/first", .steps = 1});
    REQUIRE_MESSAGE(first.ok(), first.status().message());
    const auto second = run(c, t, storage,
                            {.into = "/second", .first = 1, .steps = 2, .restore = first->folder, .on = device});
    REQUIRE_MESSAGE(second.ok(), second.status().message());
    const auto third = run(c, t, storage, {.into = "/third", .first = 2, .steps = 3, .restore = second->folder});
    REQUIRE_MESSAGE(third.ok(), third.status().message());
    CHECK(third->hash == stayed->hash);
    CHECK(third->losses.back() == stayed->losses.back());
    CHECK(third->norms.back() == stayed->norms.back());
  }
}

TEST_CASE("a void step on a device changes what it changes on the host: exponents, and the slot of the next version") {
  const auto device = test::fibers_alone();
  for (Topology t : {Topology{"1 worker", {1}}, Topology{"dp=2, ZeRO 1", {2}, 1, 1}}) {
    for (const bool keeps : {false, true}) {
      CAPTURE(t.name);
      CAPTURE(keeps);
      t.keeps_version = keeps;
      SimStorage storage;
      // sums that are too fine for what comes: terms are beyond their range
      SumState fine;
      fine.scales["model.norm.weight"] = {70, 0};
      const auto host = run(small(false), t, storage, {.into = "/host", .steps = 3, .sums = fine});
      REQUIRE_MESSAGE(host.ok(), host.status().message());
      const auto other = run(small(false), t, storage, {.into = "/device", .steps = 3, .sums = fine, .on = device});
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(host->void_steps == std::vector<bool>{true, false, false});
      CHECK(other->void_steps == host->void_steps);
      CHECK(other->losses == host->losses);
      CHECK(other->hash == host->hash);
      CHECK(other->sums == host->sums);
    }
  }
}
