// Pipeline schedules beside 1F1B: the published orders, bubbles and memory, played in the token game.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/simulate/token_game.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

const Pipeline zero_bubble{Pipeline::Kind::zero_bubble, 1};
Pipeline interleaved(std::int32_t chunks) { return {Pipeline::Kind::interleaved, chunks}; }

/// One layer in each virtual stage.
Plan pipeline(const Pipeline& schedule, std::int32_t stages, std::int64_t microbatches) {
  Shape_ s;
  s.layers = stages * schedule.chunks;
  s.microbatches = microbatches;
  s.samples = 1;
  CompileOptions o;
  o.stages = stage_meshes(std::vector<std::int64_t>(static_cast<std::size_t>(stages), 1));
  o.pipeline = schedule;
  o.stage_of_unit = {0};   // "in", the layers, "out"
  for (std::int32_t l = 0; l < s.layers; ++l) o.stage_of_unit.push_back(l);
  o.stage_of_unit.push_back(o.stage_of_unit.back());
  auto p = compile(graph(ops(), s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

/// `backward_s` is that of the whole backward pass, `weights_s` the part of it that a schedule may put elsewhere.
GameResult played(const Plan& plan, double forward_s, double backward_s, double weights_s) {
  GameOptions o;
  o.forward_s = forward_s;
  o.backward_s = backward_s;
  o.weights_s = weights_s;
  o.control_s = 0;
  o.every_program = false;
  auto result = play(plan, o);
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  return *std::move(result);
}

/// Passes of the first step in the order in which a stage begins them.
std::vector<PassOf> begun(const Plan& plan, const GameResult& result, Rank rank) {
  std::vector<PassOf> out;
  for (const auto& a : result.acts) {
    if (a.rank != rank || a.step != 0 || a.microbatch < 0) continue;
    const PassOf p{a.pass, a.virtual_stage / plan.stages, a.microbatch};
    if (std::find(out.begin(), out.end(), p) == out.end()) out.push_back(p);
  }
  return out;
}

struct Times {
  double forward, backward, weights;
};

}  // namespace

TEST_CASE("a schedule's name says what it is, and a wrong one what would be legal") {
  for (const char* name : {"1f1b", "interleaved:2", "interleaved:4", "zero-bubble"}) {
    const auto p = parse_pipeline(name);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    CHECK(to_string(*p) == name);
  }
  CHECK(parse_pipeline("interleaved:3")->chunks == 3);
  for (const char* name : {"", "interleaved", "interleaved:", "interleaved:1", "interleaved:0", "interleaved:-2", "interleaved:2x",
                           "interleaved:99999999999", "zero_bubble", "1F1B"}) {
    const auto p = parse_pipeline(name);
    REQUIRE_FALSE(p.ok());
    CHECK(p.status().message() == "pipeline schedule \"" + std::string(name) +
                                      "\": expected \"1f1b\", \"interleaved:V\" with V = 2 to 9999 chunks a stage, or \"zero-bubble\"");
  }
}

TEST_CASE("interleaved: the order of passes is Megatron's") {
  auto text = [](const std::vector<PassOf>& order) {
    std::string t;
    for (const auto& p : order) t += (t.empty() ? "" : " ") + std::string(1, "FBW"[static_cast<int>(p.pass)]) + std::to_string(p.microbatch) + "." + std::to_string(p.chunk);
    return t;
  };
  // Narayanan et al., 2021, figure 4: two devices of the four, two chunks, eight microbatches.
  CHECK(text(pass_order(interleaved(2), 4, 0, 8)) ==
        "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 "
        "F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0.0 F7.1 B1.0 "
        "B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  CHECK(text(pass_order(interleaved(2), 4, 3, 8)) ==
        "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 B2.0 F7.0 B3.0 "
        "F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0");
}

TEST_CASE("interleaved: the makespan is M(tF + tB) + (S - 1)(tF + tB)/v for every M from S on, and stages begin passes in their order") {
  for (std::int32_t stages : {2, 4, 8})
    for (std::int32_t chunks : {2, 4})
      for (std::int32_t microbatches : {stages, stages + 1, 2 * stages, 3 * stages - 1}) {
        const Plan plan = pipeline(interleaved(chunks), stages, microbatches);
        for (const Times& t : {Times{1, 2, 1}, {1, 1, 0.5}, {3, 4, 1}, {2, 1, 0.5}}) {
          CAPTURE(stages);
          CAPTURE(chunks);
          CAPTURE(microbatches);
          CAPTURE(t.backward / t.forward);
          const auto result = played(plan, t.forward, t.backward, t.weights);
          const double work = microbatches * (t.forward + t.backward), wait = (stages - 1) * (t.forward + t.backward) / chunks;
          CHECK(result.makespan_s == doctest::Approx(work + wait).epsilon(1e-6));
          CHECK(result.published_bubble == doctest::Approx(wait / (work + wait)).epsilon(1e-6));
          for (Rank s = 0; s < stages; ++s) CHECK(begun(plan, result, s) == pass_order(plan.pipeline, stages, s, microbatches));
        }
      }
}

TEST_CASE("interleaved: fewer microbatches than stages take S + (M - 1)/v of their time, which is how long the last one's way is") {
  for (std::int32_t chunks : {2, 4})
    for (std::int32_t microbatches : {1, 3}) {
      const auto result = played(pipeline(interleaved(chunks), 4, microbatches), 1, 2, 1);
      CHECK(result.makespan_s == doctest::Approx(3 * (4 + (microbatches - 1.0) / chunks)).epsilon(1e-6));
    }
}

TEST_CASE("interleaved: a stage keeps Megatron's (v - 1)S + 2(S - 1 - s) + 1 passes, or all there are") {
  for (std::int32_t stages : {2, 4, 8})
    for (std::int32_t chunks : {2, 4})
      for (std::int32_t groups : {1, 2, 3}) {
        const std::int32_t microbatches = groups * stages;
        const auto result = played(pipeline(interleaved(chunks), stages, microbatches), 1, 2, 1);
        for (std::int32_t s = 0; s < stages; ++s) {
          const std::int32_t megatron = std::min((chunks - 1) * stages + 2 * (stages - 1 - s) + 1, microbatches * chunks);
          CHECK(result.peak_stash[static_cast<std::size_t>(s)] == (groups == 1 ? microbatches * chunks : megatron));
        }
      }
}

TEST_CASE("zero-bubble: the makespan is M(tF + tB + tW) + (S - 1)(tF + tB - tW), the peak stash S on every stage") {
  for (std::int32_t stages : {1, 2, 4, 8})
    for (std::int32_t microbatches : {stages, stages + 1, 2 * stages, 3 * stages - 1}) {
      const Plan plan = pipeline(zero_bubble, stages, microbatches);
      for (const Times& t : {Times{1, 2, 1}, {2, 3, 1}, {3, 6, 2}, {4, 6, 3}, {2, 2, 1}}) {
        CAPTURE(stages);
        CAPTURE(microbatches);
        CAPTURE(t.weights / t.forward);
        const auto result = played(plan, t.forward, t.backward, t.weights);
        const double work = microbatches * (t.forward + t.backward), wait = (stages - 1) * (t.forward + t.backward - 2 * t.weights);
        CHECK(result.makespan_s == doctest::Approx(work + wait).epsilon(1e-6));
        CHECK(result.published_bubble == doctest::Approx(wait / (work + wait)).epsilon(1e-6));
        for (Rank s = 0; s < stages; ++s) {
          CHECK(begun(plan, result, s) == pass_order(plan.pipeline, stages, s, microbatches));
          CHECK(result.peak_stash[static_cast<std::size_t>(s)] == std::min(stages, microbatches));
        }
      }
    }
}

TEST_CASE("a plan has slots for what its order keeps, not more: the sum over chunks is Megatron's peak but for group ends") {
  const Plan plan = pipeline(interleaved(4), 4, 16);
  std::vector<std::int32_t> slots;
  for (const auto& c : plan.roles[0].channels)
    if (c.name.starts_with("credit")) slots.push_back(c.slots);
  CHECK(slots == std::vector<std::int32_t>{8, 8, 4, 4});   // Megatron keeps (v - 1)S + 2(S - 1) + 1 = 19 at once
}

TEST_CASE("zero-bubble: input and weight gradients are actors of their own, and a stage's weights follow s microbatches behind") {
  const Plan plan = pipeline(zero_bubble, 4, 8);
  for (const auto& role : plan.roles) {
    std::set<std::string> names;
    for (const auto& a : role.actors) {
      if (a.kind != PlanActor::Kind::segment || a.program != 0) continue;
      for (const auto& op : a.ops) CHECK((op.op == "linear_dw") == (a.pass == Pass::weights));
      if (a.pass == Pass::weights) names.insert(a.name);
    }
    CHECK(names == std::set<std::string>{"layer" + std::to_string(role.stage) + ".wgrad"});
    for (const auto& c : role.channels)
      if (c.writer >= 0 && role.actors[c.writer].pass == Pass::backward && role.actors[c.writer].kind == PlanActor::Kind::segment && c.kind == PlanChannel::Kind::stash)
        CHECK(c.slots == role.stage + 1);
  }
}

TEST_CASE("stages of different widths take any schedule, without an order: slots and priorities are enough to end a step") {
  for (const Pipeline& schedule : {interleaved(2), zero_bubble})
    for (const auto& dp : std::vector<std::vector<std::int64_t>>{{1, 2}, {2, 1}, {3, 1, 2}}) {
      Shape_ s;
      s.layers = 6;
      const auto p = plan(ops(), s, dp, 0, schedule);
      REQUIRE_MESSAGE(p.ok(), p.status().message());
      CHECK_FALSE(p->ordered());
      const auto result = play(*p);
      CHECK_MESSAGE(result.ok(), result.status().message());
    }
}

TEST_CASE("a schedule that does not fit is refused, with one that does") {
  auto refusal = [](const std::vector<std::int64_t>& dp, std::int64_t layers, const Pipeline& schedule) {
    Shape_ s;
    s.layers = layers;
    const auto p = plan(ops(), s, dp, 0, schedule);
    REQUIRE_FALSE(p.ok());
    return p.status().message();
  };
  CHECK(refusal({1}, 4, interleaved(2)) ==
        "pipeline schedule interleaved:2 needs pp=2 or more: with one stage there is no bubble to divide; use 1f1b");
  CHECK(refusal({1, 1}, 4, interleaved(4)) ==
        "pipeline schedule interleaved:4 on 2 stages needs 8 units (layers) at least, and there are 6: use interleaved:3 or less");
  CHECK(refusal({1, 1}, 1, interleaved(2)) ==
        "pipeline schedule interleaved:2 on 2 stages needs 4 units (layers) at least, and there are 3: use 1f1b or fewer stages");
  CHECK(refusal({1, 1}, 1, interleaved(1)) == "CompileOptions::pipeline is interleaved:1 with 1 chunks a stage: interleaved has 2 or more, others have 1");
  CHECK(refusal({1, 1}, 1, {Pipeline::Kind::zero_bubble, 2}) ==
        "CompileOptions::pipeline is zero-bubble with 2 chunks a stage: interleaved has 2 or more, others have 1");
}
