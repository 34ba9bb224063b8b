// Jobs whose places compute as on a GPU, on fibers: the bits of the same job on the host's processor, wherever its
// slots lie.
#include "runtime/accelerators/fibers.h"
#include "tests/numbers/lm_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t steps = unless_instrumented(2, 1);

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
  const auto device = std::make_shared<const Accelerator>(fiber_accelerator());
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
  }
}
