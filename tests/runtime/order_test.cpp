// Which worker runs which microbatch when: plan data, and the same sums whatever it says.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "runtime/simulate/token_game.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Two stages of equal cost, twelve microbatches.
Plan two_stages(const std::vector<std::int64_t>& dp) {
  Shape_ s;
  s.layers = 2;
  s.microbatches = 12;
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.stage_of_unit = {0, 0, 1, 1};
  const auto ops = kernels::standard_ops();
  auto p = compile(graph(ops, s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

double makespan(const Plan& p) {
  GameOptions o;
  o.forward_s = 1;
  o.backward_s = 2;
  const auto r = play(p, o);
  REQUIRE_MESSAGE(r.ok(), r.status().message());
  return r->makespan_s;
}

/// Four stages of one layer each, as in the textbook picture.
Plan pipeline(std::int64_t stages, std::int64_t microbatches) {
  Shape_ s;
  s.layers = stages;
  s.microbatches = microbatches;
  s.samples = 1;
  CompileOptions o;
  o.stages = stage_meshes(std::vector<std::int64_t>(static_cast<std::size_t>(stages), 1));
  o.stage_of_unit = {0};
  for (std::int32_t l = 0; l < stages; ++l) o.stage_of_unit.push_back(l);
  o.stage_of_unit.push_back(static_cast<std::int32_t>(stages) - 1);
  auto p = compile(graph(ops(), s), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

GameOptions timed(double forward_s, double backward_s) {
  GameOptions o;
  o.forward_s = forward_s;
  o.backward_s = backward_s;
  o.control_s = 0;
  o.every_program = false;
  return o;
}

}  // namespace

TEST_CASE("every microbatch runs once on each stage, and all places of a job agree on one global order") {
  for (const auto& dp : std::vector<std::vector<std::int64_t>>{{1}, {3}, {1, 2}, {2, 1}, {3, 2}, {2, 5}, {1, 4, 3}}) {
    std::vector<std::vector<std::int32_t>> orders;
    const Plan p = [&] {
      Shape_ s;
      s.microbatches = 13;
      const auto ops = kernels::standard_ops();
      auto made = plan(ops, s, dp);
      REQUIRE(made.ok());
      return *std::move(made);
    }();
    for (std::int32_t s = 0; s < p.stages; ++s) {
      std::set<std::int32_t> all;
      for (std::int64_t i = 0; i < p.dp_width(s); ++i) {
        orders.push_back(p.owners_of(0, s).microbatches(i));
        all.insert(orders.back().begin(), orders.back().end());
      }
      CHECK(all.size() == 13);
    }
    // No two microbatches are in one order here and in the other there.
    for (const auto& a : orders)
      for (const auto& b : orders)
        for (std::size_t i = 0; i < a.size(); ++i)
          for (std::size_t j = i + 1; j < a.size(); ++j) {
            const auto x = std::find(b.begin(), b.end(), a[i]), y = std::find(b.begin(), b.end(), a[j]);
            if (x != b.end() && y != b.end()) CHECK(x < y);
          }
  }
}

TEST_CASE("places own microbatches in turn and run theirs in index order") {
  const Plan p = two_stages({2, 2});
  CHECK(p.owners_of(0, 0).microbatches(0) == std::vector<std::int32_t>{0, 2, 4, 6, 8, 10});
  CHECK(p.owners_of(0, 1).microbatches(1) == std::vector<std::int32_t>{1, 3, 5, 7, 9, 11});
}

TEST_CASE("a stage behind or before a wider one serves its places in turn, and none of them waits for the others") {
  for (const auto& dp : {std::vector<std::int64_t>{1, 2}, {2, 1}}) {
    const Plan p = two_stages(dp);
    const std::int32_t narrow = dp[0] == 1 ? 0 : 1;
    CHECK(p.owners_of(0, narrow).microbatches(0) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    // The narrow stage has 12 * 3 to do and is the bottleneck: little more than its own work and one way through
    // the other stage.
    CHECK(makespan(p) <= 12 * 3 + 4);
  }
  CHECK(makespan(two_stages({2, 2})) == doctest::Approx(7 * 3));
}

TEST_CASE("1F1B: the order of acts is canonical, stash is S - s, the makespan ideal: 45 for S=4, M=12, tF=1, tB=2") {
  const Plan p = pipeline(4, 12);
  const auto result = play(p, timed(1, 2));
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result->makespan_s == doctest::Approx(45).epsilon(1e-9));
  CHECK(result->bubble == doctest::Approx(1 - 36.0 / 45).epsilon(1e-6));
  for (int s = 0; s < 4; ++s) {
    CHECK(result->peak_stash[static_cast<std::size_t>(s)] == 4 - s);
    // S - s forwards, then one backward and one forward in turn, then the remaining backwards.
    std::vector<std::string> canonical, played;
    const int ahead = std::min(4 - s, 12);
    for (int m = 0; m < ahead; ++m) canonical.push_back("F" + std::to_string(m));
    for (int m = 0; m < 12; ++m) {
      canonical.push_back("B" + std::to_string(m));
      if (m + ahead < 12) canonical.push_back("F" + std::to_string(m + ahead));
    }
    for (const auto& a : result->acts) {
      if (a.rank != s || a.step != 0 || a.program != 0 || a.microbatch < 0) continue;
      const std::string act = (a.pass == Pass::backward ? "B" : "F") + std::to_string(a.microbatch);
      if (played.empty() || played.back() != act) played.push_back(act);  // several segments of one pass
    }
    CHECK(played == canonical);
  }
}

TEST_CASE("1F1B: the makespan is (M + S - 1)(tF + tB) for other depths, counts and times too") {
  for (std::int64_t stages : {1, 2, 3, 5})
    for (std::int64_t microbatches : {2, 5, 8})
      for (const auto& [f, b] : {std::pair{1.0, 2.0}, {1.0, 1.0}, {3.0, 4.0}}) {
        INFO("S ", stages, " M ", microbatches, " tF ", f, " tB ", b);
        const auto result = play(pipeline(stages, microbatches), timed(f, b));
        REQUIRE_MESSAGE(result.ok(), result.status().message());
        CHECK(result->makespan_s ==
              doctest::Approx(static_cast<double>(microbatches + stages - 1) * (f + b)).epsilon(1e-9));
        for (std::int64_t s = 0; s < stages; ++s)
          CHECK(result->peak_stash[static_cast<std::size_t>(s)] == std::min(stages - s, microbatches));
      }
}

TEST_CASE("1F1B: a stage that keeps nothing for its backward pass but its input runs S - s ahead, no further") {
  // One linear layer a stage: its backward act reads what the exchange brought, nothing that the forward act made.
  Graph g(ops());
  g.program("train", {9, 1});
  g.unit("l0");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 4}}}}, {{"stream", std::string("x")}})[0];
  for (int l = 0; l < 4; ++l) {
    g.unit("l" + std::to_string(l));
    x = g.op("linear", {x, g.param("w" + std::to_string(l), {4, 4}, Init::normal(0.3f))})[0];
  }
  Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {1, 4}}}}, {{"stream", std::string("t")}})[0];
  Value loss = g.op("mse_loss", {x, t}, {{"scale", 1.0 / 9}})[0];
  g.minimize(loss, {});
  CompileOptions o;
  o.stages = stage_meshes({1, 1, 1, 1});
  o.stage_of_unit = {0, 1, 2, 3};
  const auto p = compile(g, o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  for (const auto& [f, b] : {std::pair{1.0, 2.0}, {1.0, 7.0}, {5.0, 1.0}}) {
    const auto result = play(*p, timed(f, b));
    REQUIRE_MESSAGE(result.ok(), result.status().message());
    CHECK(result->peak_stash == std::vector<std::int32_t>{4, 3, 2, 1});
    CHECK(result->makespan_s == doctest::Approx((9 + 3) * (f + b)).epsilon(1e-9));
  }
}

TEST_CASE("1F1B: a hop has a slot at both ends, so that the makespan is ideal even with one slot each") {
  Plan p = pipeline(4, 12);
  for (auto& role : p.roles)
    for (auto& c : role.channels) {
      const bool received = c.writer >= 0 && role.actors[c.writer].stream == "comm";
      if (received && c.kind == PlanChannel::Kind::stash) --c.slots;  // no room for landing beside the stash
      if (c.kind == PlanChannel::Kind::boundary || (c.kind == PlanChannel::Kind::activation && c.slots == 2))
        c.slots = 1;
    }
  const auto result = play(p, timed(1, 2));
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result->makespan_s == doctest::Approx(45).epsilon(1e-9));
}

TEST_CASE("where the passes' times are given nothing else takes time, but what is added to every exchange") {
  Plan p = pipeline(4, 12);
  p.costs.handover_s = 1;
  CHECK(play(p, timed(1, 2))->makespan_s == doctest::Approx(45));
  auto options = timed(1, 2);
  options.hop_s = 0.25;
  CHECK(play(pipeline(2, 1), options)->makespan_s == doctest::Approx(2 * (1 + 2) + 2 * 0.25));
}

TEST_CASE("without back-pressure the game still ends, and no sooner than 1F1B's makespan") {
  auto options = timed(1, 2);
  options.unlimited_slots = true;
  const auto result = play(pipeline(4, 12), options);
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  CHECK(result->makespan_s >= 45 - 1e-6);
}

TEST_CASE("exchanges of a place take turns at its port, but not for their latency; the ideal has the same port") {
  Shape_ s;
  CompileOptions o;
  o.stages = stage_meshes({2});
  o.costs.intra_node = {0, 1e3};
  auto plan = compile(graph(ops(), s), o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  double count = 0;
  for (auto& a : plan->roles[0].actors) a.cost_s = 0;
  int layers = 0;
  for (const auto& x : plan->exchanges)
    if (x.program == 0) count += x.seconds - x.latency_s, ++layers;
  REQUIRE(layers >= 4);  // a reduction and a gather for each of several layers
  GameOptions options;
  options.every_program = false;
  options.control_s = 0;
  const auto busy = play(*plan, options);
  REQUIRE(busy.ok());
  CHECK(busy->step_s == doctest::Approx(count));
  CHECK(busy->messages_s == doctest::Approx(count));
  options.unlimited_slots = options.unlimited_streams = true;
  CHECK(play(*plan, options)->step_s == doctest::Approx(count));
  plan->costs.intra_node = {count / layers, std::numeric_limits<double>::infinity()};  // then layers overlap
  const auto late = play(*plan, options);
  REQUIRE(late.ok());
  CHECK(late->messages_s == 0);
  CHECK(late->step_s < count);
}

TEST_CASE("messages of a step are its own, however many slots let an actor begin those of a step that is not played") {
  for (const std::int32_t ahead : {0, 3}) {
    Shape_ s;
    s.layers = 2;
    s.microbatches = 8;
    CompileOptions o;
    o.stages = stage_meshes({1, 1});
    o.stage_of_unit = {0, 0, 1, 1};
    o.pipeline.ahead = ahead;
    o.costs.intra_node = {0, 1e3};
    const auto p = compile(graph(ops(), s), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    double to_next_s = 0, back_s = 0;
    for (const auto& x : p->exchanges) {
      if (x.program != p->step_program() || x.rate != Rate::microbatch) continue;
      const bool forward = p->tensors[x.moves[0].from].mesh < p->tensors[x.moves[0].to].mesh;
      (forward ? to_next_s : back_s) += 8 * static_cast<double>(x.bytes) / 1e3;
    }
    REQUIRE(to_next_s > 0);
    GameOptions options;
    options.every_program = false;
    for (const bool ideal : {false, true}) {
      options.unlimited_slots = ideal;
      const auto r = play(*p, options);
      REQUIRE_MESSAGE(r.ok(), r.status().message());
      CHECK(r->messages_s == doctest::Approx(std::max(to_next_s, back_s)));
    }
  }
}
