// What hides exchanges inside stages: microbatches ahead of 1F1B (while one waits for an exchange, the stage works on
// another), and weight gradients as a pass of their own.
#include <limits>
#include <map>
#include <set>

#include "tests/runtime/ahead_plans.h"

using namespace ahead_plans;

namespace {

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
    "NU-1 (runs): no bit depends on how far stages run ahead, nor on weight gradients apart, on links so slow that one "
    "microbatch ahead shortens the run, and a second one too") {
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
        // With 7 no stash is a limit, and which message comes first decides: one per cent either way.
        CHECK(other.run.virtual_ns < longest_ns / 50 * (ahead == 7 ? 51 : 50));
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

TEST_CASE(
    "weight gradients apart are a segment for each part of a unit's backward pass: they hide exchanges inside it") {
  CompileOptions o = with_links(2e-3, 0, true);
  Shape_ s;
  s.microbatches = 1;
  s.layers = 2;
  s.unit_layers = 2;
  const auto made = compile(graph(ops(), s), o);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  std::map<std::string, std::pair<double, double>> weights, backward;  // begin and end of acts, by actor
  for (const GameAct& a : game_of(*made).acts)
    if (a.rank == 0 && a.step == 0 && a.actor.starts_with("layer0."))
      if (a.pass != Pass::forward) (a.pass == Pass::weights ? weights : backward)[a.actor] = {a.begin_s, a.end_s};
  REQUIRE(backward.size() >= 2);
  REQUIRE(weights.size() >= 2);
  double first_weights = 1e9, last_backward = 0;
  for (const auto& [name, at] : weights) first_weights = std::min(first_weights, at.first);
  for (const auto& [name, at] : backward) last_backward = std::max(last_backward, at.first);
  CHECK(first_weights < last_backward);
}

TEST_CASE("the ideal has slots and streams without limit: it waits for no slot, and adds what has come at once") {
  GameOptions slots, both;
  slots.unlimited_slots = both.unlimited_slots = both.unlimited_streams = true;
  const Plan p = plan_of(with_links(2e-3));
  const double bounded = game_of(p).step_s, ideal = game_of(p, slots).step_s;
  CHECK(ideal < 0.8 * bounded);
  CHECK(ideal < 1.05 * game_of(plan_of(with_links(2e-3, 7))).step_s);
  CompileOptions adding = with_links(2e-3);
  adding.costs.kernels["add_into"] = {{0, 2 * 24 * 12, 20e-3}};  // what an exchange adds takes 20 ms
  const Plan a = plan_of(adding);
  CHECK(game_of(a, both).step_s < 0.5 * game_of(a, slots).step_s);
}

TEST_CASE("messages of a step are the bytes that the busiest link carries one way, at its rate") {
  CompileOptions narrow = with_links(2e-3);  // without interfaces: the link alone
  narrow.costs.intra_node = {0, std::numeric_limits<double>::infinity(), 1e6};
  const Plan q = plan_of(narrow);
  double bytes = 0;
  for (const PlanExchange& x : q.exchanges)
    if (q.is_step_program(x.program)) bytes += static_cast<double>(x.bytes) / 2 * (x.rate == Rate::microbatch ? 8 : 1);
  CHECK(bytes > 0);
  CHECK(game_of(q).messages_s == doctest::Approx(bytes / 1e6));
}

TEST_CASE("an order of passes leaves nothing to run ahead with: refused, with what it cannot have") {
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
