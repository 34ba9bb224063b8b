// ZeRO as a layout: the optimizer's state and the update divided over dp, parameters gathered in place.
#include "placement/collective.h"
#include "tests/numbers/lm_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t zero_steps = unless_instrumented(3, 2);

Plan plan_of(const runtime::App& app, const lm::LmConfig& c, std::int64_t dp, std::int32_t zero) {
  CompileOptions o;
  o.stages = stage_meshes({dp});
  o.zero = zero;
  auto p = compile(lm::build_model(c, app.ops(), corpus()), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

void same_bits(std::int32_t zero) {
  runtime::App app;
  lm::register_actors(app);
  for (const bool tied : {false, true}) {
    const auto c = lm_tiny(tied);
    const auto alone = train(app, c, {1}, zero_steps, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    std::uint64_t seed = 5;
    auto check = [&](const std::vector<std::int64_t>& dp, std::int64_t tp, const Outcome& expected) {
      std::string what = std::string(tied ? "tied" : "untied") + ", tp " + std::to_string(tp) + ", dp per stage";
      for (auto d : dp) what += " " + std::to_string(d);
      CAPTURE(what);
      const auto other = train(app, c, dp, zero_steps, ++seed, tp, zero);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == expected);
    };
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2}, {3}, {4}, {2, 2}, {1, 3}})
      check(dp, 1, *alone);
    const auto tp = train(app, c, {1}, zero_steps, 0, 2);
    REQUIRE(tp.ok());
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2}, {3, 3}}) check(dp, 2, *tp);
  }
}

}  // namespace

TEST_CASE("NU-2 (topologies): ZeRO 1 changes no bit on any dp and pp, tied and untied, under random message timing") {
  same_bits(1);
}
TEST_CASE("NU-2: ZeRO 2 changes no bit on any dp and pp, tied and untied, under random message timing") {
  same_bits(2);
}
TEST_CASE("NU-2: ZeRO 3 changes no bit on any dp and pp, tied and untied, under random message timing") {
  same_bits(3);
}

TEST_CASE(
    "ZeRO 1 divides the optimizer's state by dp; sums of gradients are 8 bytes a parameter and 8 / dp of the share") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(false);
  for (const std::int64_t dp : {2, 4}) {
    CAPTURE(dp);
    const auto all = local_plan(plan_of(app, c, dp, 0), 0), shared = local_plan(plan_of(app, c, dp, 1), 0);
    REQUIRE(all.ok());
    REQUIRE(shared.ok());
    // A group's slot ends with the exponents of its gradients' sums.
    const auto exponents = static_cast<std::int64_t>(plan_of(app, c, dp, 0).roles[0].units.size()) * tensor_alignment;
    CHECK(all->memory.optimizer >= 2 * (all->memory.parameters - exponents));
    CHECK(all->memory.optimizer <= 2 * all->memory.parameters);
    // Rows divide evenly here; what is left is the alignment of each share.
    const auto slack = static_cast<std::int64_t>(plan_of(app, c, dp, 1).params.size()) * 2 * tensor_alignment;
    CHECK(shared->memory.optimizer >= all->memory.optimizer / dp);
    CHECK(shared->memory.optimizer <= all->memory.optimizer / dp + slack);
    CHECK(shared->memory.parameters == all->memory.parameters);
    // ZeRO 0 rounds into the memory of its own sums.
    for (const auto& local : {*all, *shared}) {
      CHECK(local.memory.gradients >= 2 * all->memory.parameters + 2 * all->memory.parameters / dp - slack);
      CHECK(local.memory.gradients <= 2 * all->memory.parameters + 2 * all->memory.parameters / dp + slack);
    }
    CHECK(all->memory.total() - shared->memory.total() >=
          all->memory.optimizer - all->memory.optimizer / dp - 2 * slack);
  }
}

TEST_CASE(
    "ZeRO 2 divides the sums of gradients by dp too; of whole gradients two units' are left, and what arrives of two") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(false);
  for (const std::int64_t dp : {2, 4}) {
    CAPTURE(dp);
    const Plan p = plan_of(app, c, dp, 2);
    const auto one = local_plan(plan_of(app, c, dp, 1), 0), two = local_plan(p, 0);
    REQUIRE(one.ok());
    REQUIRE(two.ok());
    CHECK(two->memory.optimizer == one->memory.optimizer);
    CHECK(two->memory.parameters == one->memory.parameters);
    CHECK(two->memory.gathered == 0);
    std::int64_t largest = 0;
    for (const auto& channel : p.roles[0].channels)
      if (channel.kind == PlanChannel::Kind::gradient) largest = std::max(largest, channel.bytes);
    const auto slack = static_cast<std::int64_t>(p.params.size()) * 8 * tensor_alignment;
    const auto sums = 2 * two->memory.parameters / dp;
    CHECK(two->memory.gradients >= sums + largest);
    CHECK(two->memory.gradients <= sums + 2 * largest + slack);
    CHECK(two->memory.staging <= 2 * largest * (dp - 1) / dp + slack);
  }
}

TEST_CASE("ZeRO 3 divides the parameters by dp too, plus two gathered units to train and one to evaluate") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(false);
  for (const std::int64_t dp : {2, 4}) {
    CAPTURE(dp);
    const Plan p = plan_of(app, c, dp, 3);
    const auto two = local_plan(plan_of(app, c, dp, 2), 0), three = local_plan(p, 0);
    REQUIRE(two.ok());
    REQUIRE(three.ok());
    std::int64_t largest = 0;
    for (const auto& channel : p.roles[0].channels)
      if (channel.kind == PlanChannel::Kind::gathered) largest = std::max(largest, channel.bytes);
    const auto slack = static_cast<std::int64_t>(p.params.size()) * tensor_alignment;
    CHECK(three->memory.parameters >= two->memory.parameters / dp);
    CHECK(three->memory.parameters <= two->memory.parameters / dp + 2 * slack);
    CHECK(three->memory.gathered >= 2 * largest);
    CHECK(three->memory.gathered <= 3 * largest + slack);
    CHECK(three->memory.gradients == two->memory.gradients);
    CHECK(three->memory.optimizer == two->memory.optimizer);
  }
}

TEST_CASE("NU-2: ZeRO 2 and 3 change no bit where microbatches divide unevenly over the places") {
  runtime::App app;
  lm::register_actors(app);
  auto c = lm_tiny(true);
  c.schedule.batch = 7;
  const auto alone = train(app, c, {1}, 2, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  for (const std::int32_t zero : {2, 3})
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2}, {3}, {2, 2}}) {
      CAPTURE(zero);
      const auto other = train(app, c, dp, 2, 11, 1, zero);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == *alone);
    }
}

TEST_CASE(
    "NU-2: as many places as microbatches, and widths that do not divide them, change no bit of a language model") {
  runtime::App app;
  lm::register_actors(app);
  for (const bool tied : {false, true}) {
    auto c = lm_tiny(tied);
    c.schedule.batch = 12;
    const auto alone = train(app, c, {1}, 2, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    std::uint64_t seed = 300;
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{5}, {7}, {12}, {5, 3}}) {
      const auto zero = static_cast<std::int32_t>(seed % 4);
      CAPTURE(zero);
      const auto other = train(app, c, dp, 2, ++seed, 1, zero);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == *alone);
    }
  }
}

TEST_CASE("NU-2: ZeRO 2 and 3 change no bit with interleaved stages and zero-bubble") {
  runtime::App app;
  lm::register_actors(app);
  std::uint64_t seed = 200;
  for (const bool tied : {false, true}) {
    const auto c = lm_tiny(tied);
    const auto alone = train(app, c, {1}, zero_steps, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    for (const std::int32_t zero : {2, 3})
      for (const char* name : {"interleaved:2", "zero-bubble"})
        for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2, 2}, {3, 3}, {1, 2}, {2, 2, 2}}) {
          std::string what = std::string(tied ? "tied, " : "untied, ") + name + ", zero " + std::to_string(zero) +
                             ", dp per stage";
          for (auto d : dp) what += " " + std::to_string(d);
          CAPTURE(what);
          const auto other = train(app, c, dp, zero_steps, ++seed, 1, zero, *parse_pipeline(name));
          REQUIRE_MESSAGE(other.ok(), other.status().message());
          CHECK(*other == *alone);
        }
  }
}

TEST_CASE("NU-2: ZeRO 2 and 3 change no bit where all stages share the vocabulary") {
  runtime::App app;
  lm::register_actors(app);
  auto c = lm_tiny(true);
  c.mesh.shared_vocabulary = true;
  const auto narrow = train(app, c, {1, 1}, 2, 0);
  REQUIRE_MESSAGE(narrow.ok(), narrow.status().message());
  for (const std::int32_t zero : {2, 3}) {
    CAPTURE(zero);
    const auto wide = train(app, c, {2, 2}, 2, 7, 1, zero);
    REQUIRE_MESSAGE(wide.ok(), wide.status().message());
    CHECK(*wide == *narrow);
  }
}

TEST_CASE("the gather of an update is a boxing that the plan shows: S(0) -> B over dp") {
  runtime::App app;
  lm::register_actors(app);
  const auto p = plan_of(app, lm_tiny(false), 4, 1);
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
