// schedule.ahead = auto: which plan choose_ahead takes of those that it tries, and what `plan` and `sim` tell of them.
#include "runtime/search/ahead.h"

#include <limits>
#include <tuple>

#include "runtime/show/plan_text.h"
#include "tests/runtime/ahead_plans.h"

using namespace ahead_plans;

namespace {

AheadChoice choose(const CompileOptions& o, std::optional<std::int64_t> bytes_max = std::nullopt,
                   std::int64_t microbatches = step_microbatches) {
  auto c = choose_ahead(step_graph(microbatches), o, bytes_max);
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *std::move(c);
}

}  // namespace

TEST_CASE(
    "auto chooses a plan of which each microbatch ahead, and weight gradients apart, gain 1 % of the step, and no more "
    "would") {
  // a gain below 1 %, one of 1 to 3 %; a microbatch taken away; two that gain less than 1 % each; weight gradients
  // apart in place of a microbatch, and not, since one more is faster
  bool small = false, one = false, fewer = false, two = false, instead = false, rivalled = false;
  for (const double message_s : {0.05e-3, 0.1e-3, 2e-3, 4e-3, 6e-3, 8e-3, 8.2e-3, 9.1e-3, 11.871e-3, 12e-3})
    for (const std::int64_t microbatches : {std::int64_t{1}, std::int64_t{2}, step_microbatches}) {
      CAPTURE(message_s);
      CAPTURE(microbatches);
      const auto step_s = [&](std::int32_t ahead, bool apart) {
        return game_of(plan_of(with_links(message_s, ahead, apart), microbatches)).step_s;
      };
      const AheadChoice choice = choose(with_links(message_s), std::nullopt, microbatches);
      REQUIRE(!choice.tried.empty());
      const AheadTried* chosen = nullptr;
      for (const AheadTried& t : choice.tried) {
        CHECK(t.verdict != AheadVerdict::does_not_fit);
        CHECK(t.verdict != AheadVerdict::refused);
        CHECK(t.step_s == step_s(t.ahead, t.weights_apart));
        if (chosen && t.ahead > chosen->ahead && t.weights_apart == chosen->weights_apart) {
          CHECK(t.place_bytes > chosen->place_bytes);
          small |= !t.taken() && t.step_s < chosen->step_s;
          one |= t.taken() && t.step_s > chosen->step_s * 0.97;
        }
        if (chosen && t.ahead > chosen->ahead) {
          const int more = t.ahead - chosen->ahead;
          CHECK(t.taken() == (t.step_s <= chosen->step_s * (1 - 0.01 * more)));
          two |= more == 2 && !t.taken() && t.step_s <= chosen->step_s * 0.99;
        }
        if (chosen && t.ahead == chosen->ahead) CHECK(t.taken() == (t.step_s <= chosen->step_s * 0.99));
        instead |= chosen && t.taken() && t.ahead < chosen->ahead && t.weights_apart != chosen->weights_apart;
        if (chosen && t.ahead < chosen->ahead) {
          const auto rival = [&](const AheadTried& r) {  // one microbatch more, tried before
            return &r < &t && r.ahead == t.ahead + 1 && r.weights_apart == t.weights_apart && !r.taken() &&
                   r.step_s <= t.step_s * 0.99;
          };
          const bool pays = t.step_s <= chosen->step_s * 0.99 ||
                            (t.step_s * 0.99 < chosen->step_s && t.place_bytes <= chosen->place_bytes);
          const bool has_rival = std::any_of(choice.tried.begin(), choice.tried.end(), rival);
          CHECK(t.taken() == (pays && !has_rival));
          CHECK((t.verdict == AheadVerdict::rivalled) == (pays && has_rival));
          if (!pays) CHECK(t.verdict == (t.step_s < chosen->step_s ? AheadVerdict::gains_little : AheadVerdict::loses));
          rivalled |= pays && has_rival;
        }
        for (const AheadTried& other : choice.tried)
          CHECK((&other == &t || other.ahead != t.ahead || other.weights_apart != t.weights_apart));
        fewer |= chosen && t.taken() && t.ahead < chosen->ahead;
        if (t.taken()) chosen = &t;
      }
      REQUIRE(chosen);
      for (const AheadTried& t : choice.tried) CHECK((t.verdict == AheadVerdict::chosen) == (&t == chosen));
      CHECK(choice.plan.pipeline.ahead == chosen->ahead);
      CHECK(choice.plan.pipeline.weights_apart == chosen->weights_apart);
      const auto [ahead, apart, took] = std::tuple(chosen->ahead, chosen->weights_apart, chosen->step_s);
      for (const int more : {1, 2})
        if (ahead + more < microbatches) CHECK(step_s(ahead + more, apart) > took * (1 - 0.01 * more));
      if (ahead > 0) CHECK(took <= step_s(ahead - 1, apart) * 0.99);
      if (!apart) CHECK(step_s(ahead, true) > took * 0.99);
    }
  CHECK(small);
  CHECK(one);
  CHECK(fewer);
  CHECK(two);
  CHECK(instead);
  CHECK(rivalled);
  // From 3 ahead: two beside weight gradients apart are less than 1 % slower than three, one is not.
  CHECK(choose(with_links(6e-3)).plan.pipeline == Pipeline{Pipeline::Kind::one_f_one_b, 1, 2, true});
  CHECK(choose(with_links(2e-3)).plan.pipeline.ahead >= 1);
  // One microbatch has nothing to run ahead with.
  CHECK(choose(with_links(2e-3), std::nullopt, 1).plan.pipeline.weights_apart);
}

TEST_CASE("auto takes two microbatches more where one more gains nothing, if each of them is worth 1 %") {
  CompileOptions o = with_links(8e-3);
  o.stages = stage_meshes({2}, 2);
  const AheadChoice choice = choose(o);
  CHECK(choice.plan.pipeline.ahead == 3);
  REQUIRE(choice.tried.size() >= 4);
  using Verdict = AheadVerdict;
  const Verdict expected[] = {Verdict::surpassed, Verdict::surpassed, Verdict::loses};
  for (std::int32_t ahead = 0; ahead < 3; ++ahead) {
    CHECK(choice.tried[ahead].ahead == ahead);
    CHECK(choice.tried[ahead].verdict == expected[ahead]);
  }
  CHECK(choice.tried[2].step_s > choice.tried[1].step_s * 0.99);
  CHECK(choice.tried[3].ahead == 3);
  CHECK(choice.tried[3].taken());
  CHECK(choice.tried[3].step_s <= choice.tried[1].step_s * 0.98);
}

TEST_CASE("at last auto tries all of a place's microbatches under way, where they could pay") {
  const auto with_latency = [](double latency_s, std::optional<std::int64_t> bytes_max = std::nullopt) {
    CompileOptions o = with_links(0);
    o.costs.intra_node = {latency_s, 1e15};
    return choose(o, bytes_max);
  };
  constexpr auto all = static_cast<std::int32_t>(step_microbatches) - 1;
  const AheadChoice pays = with_latency(20e-3);
  CHECK(pays.plan.pipeline == Pipeline{Pipeline::Kind::one_f_one_b, 1, all, true});
  const auto last = std::find_if(pays.tried.begin(), pays.tried.end(), [&](const auto& t) { return t.ahead == all; });
  REQUIRE(last != pays.tried.end());
  std::int32_t most = 0;  // what it has taken without
  for (auto t = pays.tried.begin(); t != last; ++t) most = t->taken() ? t->ahead : most;
  CHECK(most < all - 2);
  CHECK(last->step_s <= (last - 1)->step_s);
  REQUIRE(std::next(last) != pays.tried.end());  // then one fewer
  CHECK(std::next(last)->ahead == all - 1);
  CHECK(std::next(last)->verdict == AheadVerdict::loses);
  CHECK(with_latency(20e-3, *needed_bytes(pays.plan) - 1).plan.pipeline.ahead == most);
  const AheadChoice little = with_latency(8e-3);
  CHECK(little.tried.back().ahead == all);
  CHECK_FALSE(little.tried.back().taken());
  CHECK(little.plan.pipeline.ahead < all);
  // The computing alone is longer than what would pay.
  for (const AheadTried& t : with_latency(4e-3).tried) CHECK(t.ahead < all);
}

TEST_CASE("auto tries no more microbatches ahead than a place has besides its own") {
  for (const std::vector<std::int64_t>& stages : {std::vector<std::int64_t>{1}, {2}, {4}, {4, 2}}) {
    CompileOptions o = with_links(12e-3);
    o.stages = stage_meshes(stages, 2);
    const AheadChoice choice = choose(o, std::nullopt, 4);
    REQUIRE(!choice.tried.empty());
    for (const AheadTried& t : choice.tried) CHECK(t.ahead < 4 / stages.back());  // of the place with most
    if (stages.back() < 4) CHECK(choice.plan.pipeline.ahead > 0);
  }
}

TEST_CASE("auto takes no plan that does not fit into the memory that there is") {
  const std::int32_t chosen = choose(with_links(2e-3)).plan.pipeline.ahead;
  const auto needs = needed_bytes(plan_of(with_links(2e-3)));
  REQUIRE(needs.ok());
  CHECK(*needs > choose(with_links(2e-3)).tried[0].place_bytes);  // of two places
  const AheadChoice tight = choose(with_links(2e-3), *needs);
  CHECK(tight.plan.pipeline.ahead == 0);  // one ahead gains, and does not fit
  REQUIRE(tight.tried.size() >= 2);
  CHECK(tight.tried[0].taken());
  CHECK(tight.tried[1].ahead == 1);
  CHECK(tight.tried[1].verdict == AheadVerdict::does_not_fit);
  const auto has = needed_bytes(tight.plan);
  REQUIRE(has.ok());
  CHECK(*has <= *needs);
  CHECK(ahead_text(tight.tried, "in a box").find("\nmemory: in a box\n") != std::string::npos);
  CHECK(ahead_text(tight.tried, "").find("does not fit\n") != std::string::npos);
  CHECK(choose(with_links(2e-3), 0).tried[0].verdict == AheadVerdict::does_not_fit);
  const AheadChoice none = choose(with_links(2e-3), *needs - 1);
  CHECK(none.plan.pipeline == Pipeline{});
  REQUIRE(none.tried.size() == 1);
  CHECK(none.tried[0].verdict == AheadVerdict::does_not_fit);
  CHECK(ahead_text(none.tried, "").find("does not fit, and is chosen: there is no smaller one\n") != std::string::npos);
  CHECK(choose(with_links(2e-3), 1 << 30).plan.pipeline.ahead == chosen);
  // On slow links two ahead gain over one: the bound decides between them.
  const auto bytes = [](std::int32_t ahead) {
    const auto b = needed_bytes(plan_of(with_links(8e-3, ahead)));
    REQUIRE(b.ok());
    return *b;
  };
  REQUIRE(choose(with_links(8e-3)).plan.pipeline.ahead == 2);
  CHECK(choose(with_links(8e-3), bytes(2)).plan.pipeline.ahead == 2);
  CHECK(choose(with_links(8e-3), bytes(2) - 1).plan.pipeline.ahead == 1);
  CHECK(choose(with_links(8e-3), bytes(1)).plan.pipeline.ahead == 1);
}

TEST_CASE("what auto has tried is told plan by plan, each with its verdict, and why one is refused") {
  using Verdict = AheadVerdict;
  const std::string text = ahead_text({{0, false, Verdict::surpassed, 2, 0, 3 << 20, ""},
                                       {1, false, Verdict::gains_little, 1.99, 0, 4 << 20, ""},
                                       {2, true, Verdict::chosen, 1.5, 0, 5 << 20, ""},
                                       {1, true, Verdict::loses, 1.6, 0, 6 << 20, ""},
                                       {0, true, Verdict::rivalled, 1.61, 0, 6 << 20, ""},
                                       {3, true, Verdict::does_not_fit, 1.25, 0, 7 << 20, ""},
                                       {4, true, Verdict::refused, 0, 0, 0, "nothing acts any more"}},
                                      "in a box");
  const std::vector<std::vector<std::string>> rows = {
      {"0", "with backward", "2 s", "3 MiB", "given up for a later one"},
      {"1", "with backward", "1.99 s", "4 MiB", "gains too little"},
      {"2", "apart", "1.50 s", "5 MiB", "chosen"},
      {"1", "apart", "1.60 s", "6 MiB", "loses too much"},
      {"0", "apart", "1.61 s", "6 MiB", "one microbatch more gains 1 %"},
      {"3", "apart", "1.25 s", "7 MiB", "does not fit"},
      {"4", "apart", "refused: nothing acts any more"}};
  std::size_t at = text.find("verdict\n");
  REQUIRE(at != std::string::npos);
  for (const auto& row : rows)
    for (const std::string& cell : row) {
      at = text.find(cell, at);
      CHECK_MESSAGE(at != std::string::npos, "'" << cell << "' is not where it belongs in: " << text);
      if (at == std::string::npos) return;
      at += cell.size();
    }
  CHECK(text.find_first_not_of(" \n", at) == std::string::npos);
}

TEST_CASE("the memory that auto tells of a plan is that of its fullest place") {
  CompileOptions o = with_links(2e-3);
  o.stages = stage_meshes({1, 1}, 2);
  const AheadChoice choice = choose(o);
  REQUIRE(choice.tried.size() >= 2);
  for (const AheadTried& t : choice.tried) {
    o.pipeline.ahead = t.ahead;
    o.pipeline.weights_apart = t.weights_apart;
    const Plan p = plan_of(o);
    std::int64_t most = 0, least = std::numeric_limits<std::int64_t>::max();
    for (Rank r = 0; r < p.workers(); ++r) {
      const auto local = local_plan(p, r);
      REQUIRE(local.ok());
      most = std::max(most, local->memory.total());
      least = std::min(least, local->memory.total());
    }
    CHECK(least < most);
    CHECK(t.place_bytes == most);
  }
}

TEST_CASE("auto has nothing to choose where no exchange begins and ends inside a stage") {
  CHECK(choose(with_links(0)).plan.pipeline == Pipeline{});
  CompileOptions stages = with_links(2e-3);
  stages.stages = stage_meshes({1, 1});
  const AheadChoice pipeline = choose(stages);  // its exchanges lie between stages: 1F1B hides them
  CHECK(pipeline.plan.pipeline == Pipeline{});
  CHECK(pipeline.tried.empty());
  for (const Pipeline p : {Pipeline{Pipeline::Kind::interleaved, 2}, Pipeline{Pipeline::Kind::zero_bubble, 1}}) {
    CompileOptions ordered = with_links(2e-3);
    ordered.stages = stage_meshes({1, 1}, 2);
    ordered.pipeline = p;
    CHECK(choose(ordered).tried.empty());
  }
}

TEST_CASE("auto tries weight gradients apart only where a model axis divides a stage; elsewhere they are never apart") {
  CompileOptions o = with_links(2e-3);
  o.stages = stage_meshes({2});
  o.zero = 3;
  const AheadChoice gathers = choose(o);  // each pass waits for parameters
  CHECK(!gathers.tried.empty());
  for (const AheadTried& t : gathers.tried) CHECK_FALSE(t.weights_apart);
  o.pipeline.weights_apart = true;
  for (const PlanRole& r : plan_of(o).roles)
    for (const PlanActor& a : r.actors) CHECK(a.pass != Pass::weights);
}

TEST_CASE("choose_ahead refuses options that have chosen already, and says why there was nothing to choose") {
  for (const CompileOptions& o : {with_links(2e-3, 1), with_links(2e-3, 0, true)}) {
    const auto c = choose_ahead(step_graph(), o);
    REQUIRE(!c.ok());
    CHECK(c.status().message().find("leave both to the choice") != std::string::npos);
  }
  CHECK(choose(with_links(2e-3)).why_none.empty());
  CompileOptions o = with_links(2e-3);
  o.stages = stage_meshes({1, 1});
  CHECK(choose(o).why_none == "no exchange begins and ends inside a stage");
}
