// What hides exchanges inside stages: microbatches ahead of 1F1B (while one waits for an exchange, the stage works on
// another), and weight gradients as a pass of their own.
#include "runtime/search/ahead.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "runtime/show/plan_text.h"
#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

constexpr std::int64_t step_microbatches = 8;

Graph step_graph(std::int64_t microbatches = step_microbatches) {
  Shape_ s;
  s.microbatches = microbatches;
  s.layers = 4;
  return graph(ops(), s);
}

/// One stage on tp=2. Kernels take their launch, 1 ms each; a message takes `message_s`, of which half is latency.
CompileOptions with_links(double message_s, std::int32_t ahead = 0, bool weights_apart = false) {
  CompileOptions o;
  o.stages = stage_meshes({1}, 2);
  o.pipeline.ahead = ahead;
  o.pipeline.weights_apart = weights_apart;
  o.seed = 7;
  o.costs.flops_per_s = o.costs.memory_bytes_per_s = 1e15;
  o.costs.launch_s = 1e-3;
  o.costs.kernels["add_into"] = {{0, 1e3, 1e-12}};  // at full rate: an exchange is its messages
  // Every exchange of a microbatch moves 2 samples of 24 floats, or a part of them.
  o.costs.intra_node = {message_s / 2, 2 * 24 * 4 / std::max(1e-12, message_s / 2)};
  return o;
}

Plan plan_of(const CompileOptions& o, std::int64_t microbatches = step_microbatches) {
  auto p = compile(step_graph(microbatches), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const Status s = verify(*p);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return *std::move(p);
}

GameResult game_of(const Plan& p) {
  GameOptions o;
  o.every_program = false;
  auto r = play(p, o);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  return *std::move(r);
}

bool exchanges_inside(const Plan& p) {
  return std::any_of(p.exchanges.begin(), p.exchanges.end(),
                     [](const PlanExchange& x) { return x.program == 0 && x.rate == Rate::microbatch; });
}

}  // namespace

TEST_CASE("with one microbatch ahead a step hides exchanges that none hides with 0, for one more stash slot") {
  const Plan none = plan_of(with_links(2e-3)), one = plan_of(with_links(2e-3, 1));
  REQUIRE(exchanges_inside(none));
  const GameResult alone = game_of(none), both = game_of(one);
  CHECK(alone.compute_s == doctest::Approx(both.compute_s).epsilon(1e-12));
  CHECK(alone.peak_stash == std::vector<std::int32_t>{1});
  CHECK(both.peak_stash == std::vector<std::int32_t>{2});
  const double exposed = alone.step_s - alone.compute_s;
  CHECK(exposed > 0.25 * alone.compute_s);
  CHECK(both.step_s - both.compute_s < 0.5 * exposed);
  for (std::size_t c = 0; c < none.roles[0].channels.size(); ++c) {
    const PlanChannel &before = none.roles[0].channels[c], &after = one.roles[0].channels[c];
    const bool between_passes = before.kind == PlanChannel::Kind::stash && before.program == 0;
    CHECK_MESSAGE(after.slots == before.slots + (between_passes ? 1 : 0), before.name);
  }
}

TEST_CASE("microbatches ahead add as many stash slots on each stage, whatever the stages and their widths") {
  for (const std::vector<std::int64_t>& stages : {std::vector<std::int64_t>{1, 1}, {2}, {2, 1}}) {
    const auto made = [&](std::int32_t ahead) {
      CompileOptions o = with_links(2e-3, ahead);
      o.stages = stage_meshes(stages, 2);
      return plan_of(o);
    };
    const Plan none = made(0);
    REQUIRE(exchanges_inside(none));
    for (const std::int32_t ahead : {1, 2}) {  // no more than a place of dp=2 has microbatches
      const Plan some = made(ahead);
      REQUIRE(some.roles.size() == none.roles.size());
      for (std::size_t r = 0; r < none.roles.size(); ++r) {
        REQUIRE(some.roles[r].channels.size() == none.roles[r].channels.size());
        for (std::size_t c = 0; c < none.roles[r].channels.size(); ++c) {
          const PlanChannel &before = none.roles[r].channels[c], &after = some.roles[r].channels[c];
          CAPTURE(before.name);
          CHECK(after.name == before.name);
          const bool between_passes = before.kind == PlanChannel::Kind::stash && before.program == 0;
          CHECK(after.slots == before.slots + (between_passes ? ahead : 0));
        }
      }
      const auto before = game_of(none).peak_stash, after = game_of(some).peak_stash;
      REQUIRE(after.size() == before.size());
      for (std::size_t s = 0; s < before.size(); ++s) {
        CHECK(after[s] > before[s]);
        CHECK(after[s] <= before[s] + ahead);
      }
    }
  }
}

TEST_CASE("no stash has more slots than its place has microbatches, whatever ahead") {
  for (const std::vector<std::int64_t>& stages : {std::vector<std::int64_t>{1}, {2}, {3}, {1, 1}, {2, 1}, {1, 3}}) {
    CompileOptions o = with_links(2e-3, 100);
    o.stages = stage_meshes(stages, 2);
    const Plan p = plan_of(o);
    for (std::size_t r = 0; r < p.roles.size(); ++r) {
      const auto most = static_cast<std::int32_t>((step_microbatches + stages[r] - 1) / stages[r]);
      int stashes = 0, credits = 0;
      for (const PlanChannel& c : p.roles[r].channels) {
        if (c.kind != PlanChannel::Kind::stash || c.program != 0) continue;
        const bool credit = c.name.starts_with("credit.");
        (credit ? credits : stashes) += 1;
        // an exchange's: one more comes in
        const bool lands = c.writer >= 0 && p.roles[r].actors[c.writer].kind != PlanActor::Kind::segment;
        CHECK_MESSAGE(c.slots == most + (lands ? 1 : 0), c.name << " of stage " << r);
      }
      CHECK(stashes > 0);
      CHECK(credits > 0);
    }
  }
}

TEST_CASE(
    "NU-1 (runs): no bit depends on how far stages run ahead, nor on weight gradients apart, on links so slow that "
    "each "
    "microbatch ahead shortens the run") {
  comm::SimLink slow;
  slow.latency_ns = 4'000'000;  // of four kernels
  const auto run = [&](std::int32_t ahead, bool weights_apart, std::uint64_t seed) {
    auto r = train(plan_of(with_links(2e-3, ahead, weights_apart)), ops(), 4, seed, step_microbatches * 2, slow);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return *std::move(r);
  };
  const auto first = run(0, false, 0);
  for (const bool apart : {false, true}) {
    std::int64_t longest_ns = std::numeric_limits<std::int64_t>::max();
    for (const std::int32_t ahead : {0, 1, 2, 7})
      for (const std::uint64_t seed : {0, 40 + ahead}) {
        CAPTURE(ahead);
        CAPTURE(apart);
        const auto other = run(ahead, apart, seed);
        CHECK(other.run.params_hash == first.run.params_hash);
        CHECK(other.eval == first.eval);
        REQUIRE(other.run.steps.size() == first.run.steps.size());
        for (std::size_t s = 0; s < first.run.steps.size(); ++s) {
          CHECK(other.run.steps[s].loss == first.run.steps[s].loss);
          CHECK(other.run.steps[s].grad_norm == first.run.steps[s].grad_norm);
        }
        if (seed != 0) continue;
        CHECK(other.run.virtual_ns < longest_ns);
        longest_ns = other.run.virtual_ns;
      }
  }
}

TEST_CASE("one slot fewer in any channel: refused as a deadlock or by the channel's name, or every bit is the same") {
  const auto run = [](const Plan& p) {
    auto r = train(p, ops(), 2, 11, step_microbatches * 2);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return *std::move(r);
  };
  using Kind = Pipeline::Kind;
  struct Case {
    std::vector<std::int64_t> stages;
    Pipeline pipeline;
  };
  Pipeline ahead{Kind::one_f_one_b, 1, 2}, apart = ahead, interleaved{Kind::interleaved, 2},
                                           zero_bubble{Kind::zero_bubble};
  apart.weights_apart = true;
  int deadlocks = 0, named = 0, accepted = 0;
  for (const Case& plan : {Case{{1}, ahead}, Case{{1}, apart}, Case{{1, 1}, ahead}, Case{{1, 1}, apart},
                           Case{{1, 1}, interleaved}, Case{{1, 1}, zero_bubble}}) {
    CompileOptions o = with_links(2e-3);
    o.stages = stage_meshes(plan.stages, 2);
    o.pipeline = plan.pipeline;
    const Plan whole = plan_of(o);
    const auto expected = run(whole);
    for (std::size_t r = 0; r < whole.roles.size(); ++r)
      for (std::size_t c = 0; c < whole.roles[r].channels.size(); ++c) {
        Plan p = whole;
        PlanChannel& channel = p.roles[r].channels[c];
        if (channel.program != 0 || channel.slots == 0) continue;
        --channel.slots;
        CAPTURE(channel.name);
        CAPTURE(channel.slots);
        const Status refused = verify(p);
        if (!refused.ok()) {
          const bool deadlock = refused.message().find("deadlock") != std::string::npos;
          CHECK_MESSAGE((deadlock || refused.message().find(channel.name) != std::string::npos), refused.message());
          deadlock ? ++deadlocks : ++named;
          // What is refused without a game has no slot left, or slots that are fixed by what it is.
          if (!deadlock) CHECK_MESSAGE((channel.slots == 0 || channel.kind == PlanChannel::Kind::turn), channel.name);
          if (deadlock) CHECK(!train(p, ops(), 2, 11, step_microbatches * 2).ok());  // it stands still indeed
          continue;
        }
        ++accepted;
        const auto other = run(p);
        CHECK(other.run.params_hash == expected.run.params_hash);
        CHECK(other.eval == expected.eval);
        for (std::size_t s = 0; s < expected.run.steps.size(); ++s) {
          CHECK(other.run.steps[s].loss == expected.run.steps[s].loss);
          CHECK(other.run.steps[s].grad_norm == expected.run.steps[s].grad_norm);
        }
      }
  }
  MESSAGE(deadlocks << " deadlocks, " << named << " refused by name, " << accepted << " accepted");
  CHECK(deadlocks > 0);
  CHECK(named > 0);
  CHECK(accepted > 0);
}

TEST_CASE("weight gradients apart come after every other pass in priority; only what they read waits for them") {
  for (const std::vector<std::int64_t>& stages : {std::vector<std::int64_t>{1}, {1, 1}})
    for (const std::int32_t ahead : {0, 2}) {
      CompileOptions o = with_links(2e-3, ahead);
      o.stages = stage_meshes(stages, 2);
      const Plan whole = plan_of(o);
      o.pipeline.weights_apart = true;
      const Plan apart = plan_of(o);
      for (std::size_t r = 0; r < apart.roles.size(); ++r) {
        const PlanRole& role = apart.roles[r];
        for (const PlanActor& w : role.actors)
          for (const PlanActor& other : role.actors)
            if (w.kind == PlanActor::Kind::segment && w.pass == Pass::weights && other.pass != Pass::weights &&
                other.kind == PlanActor::Kind::segment && apart.is_step_program(other.program))
              CHECK_MESSAGE(w.priority > other.priority, w.name << " before " << other.name);
        CHECK(std::any_of(role.actors.begin(), role.actors.end(), [&](const PlanActor& a) {
          return a.kind == PlanActor::Kind::segment && a.pass == Pass::weights && apart.is_step_program(a.program);
        }));
        std::map<std::string, std::int32_t> before;  // slots of what waits for the backward pass
        for (const PlanChannel& c : whole.roles[r].channels)
          if (c.kind == PlanChannel::Kind::stash && c.program == 0) before[c.name] = c.slots;
        const auto up = static_cast<std::int32_t>(r) + 1;  // stages from the first one to this
        std::size_t found = 0;
        for (const PlanChannel& c : role.channels) {
          if (c.kind != PlanChannel::Kind::stash || c.program != 0) continue;
          const bool lands = c.writer >= 0 && role.actors[c.writer].kind != PlanActor::Kind::segment;
          const bool for_weights = std::any_of(c.readers.begin(), c.readers.end(), [&](const auto& reader) {
            return reader.actor >= 0 && role.actors[reader.actor].pass == Pass::weights;
          });
          if (!before.count(c.name)) {  // from the backward pass
            CHECK(for_weights);
            CHECK_MESSAGE(c.slots <= up + (lands ? 1 : 0), c.name);
            continue;
          }
          ++found;
          const std::int32_t slots = before[c.name];
          CHECK_MESSAGE(c.slots == (for_weights ? std::max(slots, up + ahead + (lands ? 1 : 0)) : slots), c.name);
        }
        CHECK(found == before.size());
      }
    }
}

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
  // a gain below 1 %, one of 1 to 3 %; a microbatch taken away; two that gain less than 1 % each
  bool small = false, one = false, fewer = false, two = false;
  for (const double message_s : {0.05e-3, 0.1e-3, 2e-3, 4e-3, 6e-3, 8e-3, 8.2e-3, 9.1e-3, 12e-3})
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
  const Verdict expected[] = {Verdict::surpassed, Verdict::surpassed, Verdict::gains_little};
  for (std::int32_t ahead = 0; ahead < 3; ++ahead) {
    CHECK(choice.tried[ahead].ahead == ahead);
    CHECK(choice.tried[ahead].verdict == expected[ahead]);
  }
  CHECK(choice.tried[2].step_s > choice.tried[1].step_s * 0.99);
  CHECK(choice.tried[3].ahead == 3);
  CHECK(choice.tried[3].taken());
  CHECK(choice.tried[3].step_s <= choice.tried[1].step_s * 0.98);
}

TEST_CASE("under ZeRO 3, too, a microbatch ahead is under way while another waits") {
  const auto made = [](std::int32_t ahead) {
    CompileOptions o = with_links(2e-3, ahead);
    o.stages = stage_meshes({2}, 2);
    o.zero = 3;
    return plan_of(o);
  };
  const auto rings = [](const Plan& p) {  // of what training gathers
    std::set<std::int32_t> found;
    for (const PlanChannel& c : p.roles[0].channels)
      if (c.kind == PlanChannel::Kind::gathered && p.is_step_program(c.program)) found.insert(c.ring);
    return found.size();
  };
  const Plan with_0 = made(0), with_1 = made(1);
  CHECK(rings(with_0) == 1);
  CHECK(rings(with_1) == 2);
  const GameResult alone = game_of(with_0), both = game_of(with_1);
  CHECK(alone.peak_stash == std::vector<std::int32_t>{1});
  CHECK(both.peak_stash == std::vector<std::int32_t>{2});
  CHECK(both.step_s < 0.95 * alone.step_s);
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

TEST_CASE("weight gradients apart hide the exchange of an input's gradient in a step of one microbatch") {
  const Plan with = plan_of(with_links(2e-3), 1), apart = plan_of(with_links(2e-3, 0, true), 1);
  const GameResult before = game_of(with), after = game_of(apart);
  CHECK(after.step_s < before.step_s);
  CHECK(after.compute_s == doctest::Approx(before.compute_s).epsilon(0.1));  // a launch more for each pass
  const auto passes = [](const Plan& p) {
    return std::count_if(p.roles[0].actors.begin(), p.roles[0].actors.end(), [](const PlanActor& a) {
      return a.kind == PlanActor::Kind::segment && a.pass == Pass::weights;
    });
  };
  CHECK(passes(with) == 0);
  CHECK(passes(apart) > 0);
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
  CHECK(ahead_text(tight.tried, "").find("does not fit") != std::string::npos);
  CHECK(choose(with_links(2e-3), 0).tried[0].verdict == AheadVerdict::does_not_fit);
  const AheadChoice none = choose(with_links(2e-3), *needs - 1);
  CHECK(none.plan.pipeline == Pipeline{});
  REQUIRE(none.tried.size() == 1);
  CHECK(none.tried[0].verdict == AheadVerdict::does_not_fit);
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
  const std::string text = ahead_text({{0, false, Verdict::surpassed, 2, 3 << 20, ""},
                                       {1, false, Verdict::gains_little, 1.99, 4 << 20, ""},
                                       {2, true, Verdict::chosen, 1.5, 5 << 20, ""},
                                       {1, true, Verdict::loses, 1.6, 6 << 20, ""},
                                       {3, true, Verdict::does_not_fit, 1.25, 7 << 20, ""},
                                       {4, true, Verdict::refused, 0, 0, "nothing acts any more"}},
                                      "in a box");
  const std::vector<std::vector<std::string>> rows = {{"0", "with backward", "2 s", "3 MiB", "a later one is better"},
                                                      {"1", "with backward", "1.99 s", "4 MiB", "gains too little"},
                                                      {"2", "apart", "1.50 s", "5 MiB", "chosen"},
                                                      {"1", "apart", "1.60 s", "6 MiB", "loses too much"},
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

TEST_CASE("an order of passes leaves nothing to run ahead with: refused, with its name") {
  for (const Pipeline p :
       {Pipeline{Pipeline::Kind::zero_bubble, 1, 0, true}, Pipeline{Pipeline::Kind::interleaved, 2, 0, true}}) {
    CompileOptions o = with_links(0);
    o.stages = stage_meshes({1, 1}, 2);
    o.pipeline = p;
    const auto made = compile(step_graph(), o);
    REQUIRE(!made.ok());
    CHECK(made.status().message().find("weight gradients apart") != std::string::npos);
  }
  for (const Pipeline p : {Pipeline{Pipeline::Kind::zero_bubble, 1, 1}, Pipeline{Pipeline::Kind::one_f_one_b, 1, -1}}) {
    CompileOptions o = with_links(0);
    o.stages = stage_meshes({1, 1});
    o.pipeline = p;
    const auto made = compile(step_graph(), o);
    REQUIRE(!made.ok());
    CHECK(made.status().message().find("microbatches ahead") != std::string::npos);
  }
  Plan p = plan_of(with_links(0));
  p.pipeline.ahead = -1;
  CHECK(verify(p).message().find("-1 microbatches ahead") != std::string::npos);
}
