// ZeRO 3: what a place works out of a gather is its own part of the whole, and costs are those of the whole.
#include <doctest/doctest.h>

#include <algorithm>

#include "placement/cost.h"
#include "runtime/place/gather_boxing.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

struct GatherCase {
  std::vector<std::int64_t> dp;
  std::int64_t tp = 1;
  bool tied = false;
};

/// Rounds that are full and rounds that are not; parameters of one stage, and of two.
const std::vector<GatherCase>& gather_cases() {
  static const std::vector<GatherCase> cases = {{{5}}, {{5}, 2}, {{3, 2}, 1, true}, {{2, 3}, 2, true}, {{11}}};
  return cases;
}

Plan gathering_plan(const GatherCase& c) {
  Shape_ s;
  s.microbatches = 14;
  s.tied = c.tied;
  CompileOptions o;
  o.stages = stage_meshes(c.dp, c.tp);
  o.zero = 3;
  o.costs.places_per_node = 2;
  auto p = compile(graph(ops(), s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

std::vector<const PlanExchange*> gathers_of(const Plan& plan) {
  std::vector<const PlanExchange*> out;
  for (const auto& x : plan.exchanges)
    if (x.rate == Rate::round && !plan.reduces(x)) out.push_back(&x);
  REQUIRE(out.size() >= 4);
  return out;
}

/// The boxing of all places of a group at once.
BoxingPlan whole_boxing(const BoxingGroup& group) {
  auto whole = plan_boxing(HoldingList(group.from), group.to);
  REQUIRE_MESSAGE(whole.ok(), whole.status().message());
  return *std::move(whole);
}

}  // namespace

TEST_CASE(
    "of a gather a place works out its own transfers only, in the order in which the whole gather has them: at most "
    "one for each share and one for each place that gets the parameter") {
  for (const GatherCase& c : gather_cases()) {
    const Plan plan = gathering_plan(c);
    CAPTURE(c.dp);
    CAPTURE(c.tp);
    for (const PlanExchange* x : gathers_of(plan)) {
      CAPTURE(x->name);
      for (std::int32_t round = 0; round < plan.owners_of(*x).rounds(); ++round)
        for (const Rank rank : plan.meshes[static_cast<std::size_t>(plan.tensors[x->moves[0].from].mesh)].ranks) {
          const auto own = gather_boxings(plan, *x, round, rank);
          REQUIRE_MESSAGE(own.ok(), own.status().message());
          const auto groups = gather_groups(plan, *x, round, rank);
          REQUIRE_MESSAGE(groups.ok(), groups.status().message());
          REQUIRE(own->size() == x->moves.size());
          REQUIRE(groups->size() == x->moves.size());
          for (std::size_t m = 0; m < own->size(); ++m) {
            const BoxingGroup& group = (*groups)[m];
            REQUIRE((*own)[m].transfers.size() <= group.from.size() + group.to.size());
            auto expected = whole_boxing(group).transfers;
            std::erase_if(expected, [&](const Transfer& t) { return t.from != rank && t.to != rank; });
            REQUIRE((*own)[m].transfers == expected);
          }
        }
    }
  }
}

TEST_CASE("a gather moves the bytes, and takes the time, of its busiest place in the first round") {
  int partial = 0;
  for (const GatherCase& c : gather_cases()) {
    const Plan plan = gathering_plan(c);
    CAPTURE(c.dp);
    CAPTURE(c.tp);
    for (const PlanExchange* x : gathers_of(plan)) {
      CAPTURE(x->name);
      const Mesh& mesh = plan.meshes[static_cast<std::size_t>(plan.tensors[x->moves[0].to].mesh)];
      const auto groups = gather_groups(plan, *x, 0, mesh.ranks[0]);
      REQUIRE_MESSAGE(groups.ok(), groups.status().message());
      partial += std::ssize(groups->front().to) < mesh.axis_size("dp");  // an evaluation of 3 microbatches
      BoxingPlan all;
      for (const auto& group : *groups) {
        const BoxingPlan whole = whole_boxing(group);
        all.transfers.insert(all.transfers.end(), whole.transfers.begin(), whole.transfers.end());
      }
      CHECK(x->bytes == all.moved_bytes(4) * c.tp);
      CHECK(x->seconds == doctest::Approx(boxing_seconds(all, 4, plan.costs)).epsilon(1e-12));
      CHECK(x->latency_s == doctest::Approx(boxing_seconds(all, 0, plan.costs)).epsilon(1e-12));
    }
  }
  CHECK(partial > 0);
}
