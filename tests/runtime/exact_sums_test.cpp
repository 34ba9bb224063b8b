// Gradients as exact sums, from the ops to the update: void steps, exponents that change, and any owner of any
// microbatch.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// What makes a term large in one microbatch of one step.
struct Burst {
  std::int64_t step = -1;
  std::int32_t microbatch = 0;
  float factor = 1;
};

actors::UserActorSet actors_with(const Burst& burst) {
  class Bursting final : public actors::UserActor {
   public:
    Bursting(const actors::UserActorInfo& info, const Burst& burst) : data_(info), burst_(burst) {}
    Status act(actors::UserCall& call) override {
      TROUPE_TRY(data_.act(call));
      auto& v = call.out[0];
      for (std::int64_t i = 0; i < v.size() && call.step == burst_.step && call.microbatch == burst_.microbatch; ++i)
        v.as<float>()[i] *= burst_.factor;
      return {};
    }

   private:
    Data data_;
    Burst burst_;
  };
  class Zeros final : public actors::UserActor {
   public:
    Status act(actors::UserCall& call) override {
      std::fill_n(call.out[0].as<float>(), call.out[0].size(), 0.0f);
      return {};
    }
  };
  auto set = actor_set();
  set["burst"] = [burst](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Bursting>(info, burst));
  };
  set["zeros"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Zeros>());
  };
  return set;
}

constexpr std::int64_t microbatches = 12;

/// Three linear layers, the first used twice; `idle` meets zeros only, so its gradient is zero.
Graph three_layers(double scale) {
  Graph g(ops());
  constexpr std::int64_t n = 2, width = 6;
  const auto weight = [&](const char* name) { return g.param(name, {width, width}, Init::normal(0.4f)); };
  g.program("train", {microbatches, n});
  g.unit("in");
  Value x = g.actor("burst", "x", {}, {{"x", {DType::f32, {n, width}}}}, {{"stream", std::string("x")}})[0];
  Value zero = g.actor("zeros", "zero", {}, {{"x", {DType::f32, {n, width}}}})[0];
  x = g.op("linear", {x, weight("w0")})[0];
  g.unit("idle");
  x = g.op("add", {x, g.op("linear", {zero, weight("idle")})[0]})[0];
  g.unit("middle");
  x = g.op("relu", {g.op("linear", {x, weight("w1")})[0]})[0];
  g.unit("out");
  x = g.op("linear", {x, weight("w0")})[0];
  Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {n, width}}}}, {{"stream", std::string("t")}})[0];
  g.minimize(g.op("mse_loss", {x, t}, {{"scale", scale}})[0], {});
  return g;
}

Expected<SimRun> train_with(const Graph& g, const CompileOptions& o, const Burst& burst, std::int64_t steps,
                            std::uint64_t seed, SumState sums = {}) {
  TROUPE_ASSIGN(const Plan p, compile(g, o));
  TROUPE_TRY(verify(p));
  SessionOptions session;
  session.steps = steps;
  session.sums = std::move(sums);
  session.clip = 0.5;
  session.loss_divisor = microbatches;
  session.lr = [](std::int64_t) { return 1e-2; };
  SimClusterOptions cluster;
  cluster.seed = seed;
  return run_simulated(p, ops(), actors_with(burst), session, cluster);
}

/// Widths, cuts, ZeRO stages, schedules.
std::vector<CompileOptions> topologies() {
  std::vector<CompileOptions> out;
  for (const std::vector<std::int64_t>& dp :
       {std::vector<std::int64_t>{1}, {2}, {3}, {5}, {7}, {12}, {1, 1}, {2, 1}, {3, 2, 1}, {2, 2, 2, 2}})
    for (const std::int32_t zero : {0, 1, 2, 3}) {
      CompileOptions o;
      o.stages = stage_meshes(dp);
      o.zero = zero;
      out.push_back(o);
    }
  for (const char* name : {"interleaved:2", "zero-bubble"})
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1, 1}, {2, 2}})
      for (const std::int32_t zero : {0, 1, 2, 3}) {
        CompileOptions o;
        o.stages = stage_meshes(dp);
        o.zero = zero;
        o.pipeline = *parse_pipeline(name);
        out.push_back(o);
      }
  return out;
}

void check_same(const SimRun& a, const SimRun& b) {
  REQUIRE(a.steps.size() == b.steps.size());
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    CAPTURE(s);
    CHECK(a.steps[s].loss == b.steps[s].loss);
    CHECK(a.steps[s].grad_norm == b.steps[s].grad_norm);
    CHECK(a.steps[s].void_step == b.steps[s].void_step);
    CHECK(a.steps[s].void_parameter == b.steps[s].void_parameter);
    CHECK(a.steps[s].void_microbatch == b.steps[s].void_microbatch);
  }
  CHECK(a.params_hash == b.params_hash);
  CHECK(a.sums == b.sums);
}

std::string named(const CompileOptions& o) {
  std::string text = to_string(o.pipeline) + ", zero " + std::to_string(o.zero) + ", dp";
  for (const auto& m : o.stages) text += " " + std::to_string(m.axis_size("dp"));
  return text;
}

}  // namespace

TEST_CASE(
    "NU-2 (topologies): a step with a term beyond its sum is void on any topology alike, names the same microbatch, "
    "and changes no bit elsewhere") {
  const Graph g = three_layers(1.0 / microbatches);
  const Burst burst{2, 5, 1e5f};
  CompileOptions alone;
  alone.stages = stage_meshes({1});
  const auto expected = train_with(g, alone, burst, 5, 0);
  REQUIRE_MESSAGE(expected.ok(), expected.status().message());
  REQUIRE(expected->steps.size() == 5);
  for (const auto& step : expected->steps) CHECK(step.void_step == (step.step == 2));
  CHECK(expected->steps[2].void_microbatch == 5);
  CHECK(expected->steps[2].void_parameter == "w0");
  CHECK(expected->steps[2].grad_norm == 0);
  std::uint64_t seed = 0;
  for (const auto& o : topologies()) {
    CAPTURE(named(o));
    const auto other = train_with(g, o, burst, 5, ++seed);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    check_same(*expected, *other);
  }
}

TEST_CASE(
    "the more terms a step adds to a gradient, the smaller is a term that makes it void; a place that adds it names "
    "its microbatch") {
  const Graph g = three_layers(1.0 / microbatches);
  for (const std::int64_t terms : {24, 1 << 20}) {  // of w0: as they are counted; as if there were many
    CAPTURE(terms);
    CompileOptions o;
    o.stages = stage_meshes({2});
    auto p = compile(g, o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    for (auto& param : p->params)
      if (param.name == "w0") {
        CHECK(param.terms == 24);
        param.terms = terms;
      }
    SessionOptions session;
    session.steps = 2;
    session.loss_divisor = microbatches;
    // In units of 2^-43, with which a run begins, the largest term of the burst lies between 2^42 and 2^50.
    const auto run = run_simulated(*p, ops(), actors_with({0, 5, 24.0f}), session, {});
    REQUIRE_MESSAGE(run.ok(), run.status().message());
    CHECK(run->steps[0].void_step == (terms > 24));
    if (terms > 24) CHECK(run->steps[0].void_parameter == "w0");
    if (terms > 24) CHECK(run->steps[0].void_microbatch == 5);
    CHECK_FALSE(run->steps[1].void_step);
  }
}

TEST_CASE("a void step leaves the parameters of the step before, and counts no update") {
  // With the same data in every step, a run with a void step in it ends where one with a step less does.
  const Graph g = three_layers(1.0 / microbatches);
  CompileOptions o;
  o.stages = stage_meshes({2});
  class Constant final : public actors::UserActor {
   public:
    explicit Constant(const actors::UserActorInfo& info, Burst burst) : data_(info), burst_(burst) {}
    Status act(actors::UserCall& call) override {
      const auto step = std::exchange(call.step, 0);
      TROUPE_TRY(data_.act(call));
      call.step = step;
      auto& v = call.out[0];
      for (std::int64_t i = 0; i < v.size() && step == burst_.step; ++i) v.as<float>()[i] *= burst_.factor;
      return {};
    }

   private:
    Data data_;
    Burst burst_;
  };
  const auto train = [&](Burst burst, std::int64_t steps) {
    const auto p = compile(g, o);
    REQUIRE(p.ok());
    auto set = actors_with({});
    const auto constant = [burst](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
      return std::unique_ptr<actors::UserActor>(
          std::make_unique<Constant>(info, info.attrs.text("stream") == "x" ? burst : Burst{}));
    };
    set["burst"] = set["data"] = constant;
    SessionOptions session;
    session.steps = steps;
    session.loss_divisor = microbatches;
    session.lr = [](std::int64_t) { return 1e-2; };
    const auto run = run_simulated(*p, ops(), set, session, {});
    REQUIRE_MESSAGE(run.ok(), run.status().message());
    return *run;
  };
  const auto with = train({3, 0, 1e5f}, 4), without = train({}, 3);  // the last step of `with` is the void one
  CHECK(with.steps[3].void_step);
  CHECK(with.params_hash == without.params_hash);
  CHECK(with.sums.updates == 3);
  CHECK(without.sums.updates == 3);
}

TEST_CASE("parameters of one slot have exponents of their own, at every place that makes, adds, rounds or updates") {
  // Of two parameters in each layer's slot one is so coarse that its terms round to nothing: the norm is that of the
  // other.
  const auto norm_of = [](const std::vector<std::int64_t>& dp, std::int32_t zero,
                          std::map<std::string, SumScale> scales) {
    const auto p = plan(ops(), {}, dp, zero);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    SessionOptions session;
    session.steps = 1;
    session.loss_divisor = 8;
    session.sums = {1, std::move(scales)};
    const auto run = run_simulated(*p, ops(), actor_set(), session, {});
    REQUIRE_MESSAGE(run.ok(), run.status().message());
    return run->steps.at(0).grad_norm;
  };
  constexpr std::int32_t blunt = -60;
  std::map<std::string, SumScale> ups, downs;
  for (const std::string layer : {"layer0", "layer1", "layer2"}) {
    ups[layer + ".down"] = {blunt, 0};
    downs[layer + ".up"] = {blunt, 0};
  }
  const double all = norm_of({1}, 0, {}), up = norm_of({1}, 0, ups), down = norm_of({1}, 0, downs);
  CHECK(up > 0);
  CHECK(down > 0);
  CHECK(up * up + down * down == doctest::Approx(all * all).epsilon(1e-12));
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2}, {3, 1}, {4, 4}})
    for (const std::int32_t zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      CHECK(norm_of(dp, zero, ups) == up);
      CHECK(norm_of(dp, zero, downs) == down);
    }
}

TEST_CASE(
    "a plan whose steps add no term, or more than 2^40, to a gradient is refused by the parameter and the number") {
  auto p = plan(ops(), {}, {2});
  REQUIRE(p.ok());
  for (const std::int64_t terms : {std::int64_t{0}, std::int64_t{-5}, (std::int64_t{1} << 40) + 1}) {
    p->params[1].terms = terms;
    const Status s = verify(*p);
    REQUIRE_FALSE(s.ok());
    CHECK(s.message().find("a step adds " + std::to_string(terms) + " terms to the gradient of parameter '" +
                           p->params[1].name + "'") != std::string::npos);
  }
}

TEST_CASE("a plan counts the terms of a parameter over all its uses and microbatches, on any topology") {
  Shape_ s;
  s.tied = true;
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {3}, {2, 1}}) {
    const auto p = plan(ops(), s, dp);
    REQUIRE(p.ok());
    REQUIRE(p->params.size() == 5);
    for (const auto& param : p->params) CHECK(param.terms == (param.name == "layer0.up" ? 16 : 8));
  }
}

TEST_CASE(
    "three void steps in a row are divergence; a term that is not finite is at once, and both name microbatch and "
    "parameter") {
  CompileOptions o;
  o.stages = stage_meshes({3});
  // Terms grow faster than exponents follow.
  class Growing final : public actors::UserActor {
   public:
    explicit Growing(const actors::UserActorInfo& info) : data_(info) {}
    Status act(actors::UserCall& call) override {
      TROUPE_TRY(data_.act(call));
      for (std::int64_t i = 0; i < call.out[0].size(); ++i)
        call.out[0].as<float>()[i] *= std::ldexp(1.0f, static_cast<int>(12 + 14 * call.step));
      return {};
    }

   private:
    Data data_;
  };
  const auto p = compile(three_layers(1), o);
  REQUIRE(p.ok());
  auto set = actors_with({});
  set["burst"] = [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Growing>(info));
  };
  SessionOptions session;
  session.steps = 9;
  session.loss_divisor = microbatches;
  const auto grown = run_simulated(*p, ops(), set, session, {});
  REQUIRE_FALSE(grown.ok());
  CHECK_MESSAGE(grown.status().message().find("3 steps in a row are void") != std::string::npos,
                grown.status().message());
  CHECK_MESSAGE(grown.status().message().find("microbatch 0: a gradient term of 'w0'") != std::string::npos,
                grown.status().message());

  for (const auto& topology : topologies()) {
    CAPTURE(named(topology));
    const auto infinite = train_with(three_layers(1), topology, {1, 7, HUGE_VALF}, 3, 3);
    REQUIRE_FALSE(infinite.ok());
    CHECK_MESSAGE(infinite.status().message().find("step 1: microbatch 7: a gradient term of 'w0' is not finite") !=
                      std::string::npos,
                  infinite.status().message());
  }
}

TEST_CASE(
    "NU-2: exponents that become coarser and finer change no bit between topologies, and an all-zero gradient keeps "
    "its own") {
  // So large a scale that the first commit makes exponents coarser; so many steps that each becomes finer once.
  const Graph g = three_layers(3.0);
  CompileOptions alone;
  alone.stages = stage_meshes({1});
  const SumState begin{60, {{"w1", {20, 0}}, {"idle", {31, 0}}}};
  const auto expected = train_with(g, alone, {}, 8, 0, begin);
  REQUIRE_MESSAGE(expected.ok(), expected.status().message());
  const SumState& end = expected->sums;
  CHECK(end.updates == 68);
  CHECK(end.scales.at("idle") == SumScale{31, 0});
  CHECK(end.scales.at("w0").exponent < first_exponent(microbatches));  // coarser
  const auto of_w1 = [&](std::int64_t steps) {
    return train_with(g, alone, {}, steps, 0, begin)->sums.scales.at("w1").exponent;
  };
  CHECK(of_w1(4) == of_w1(3) + 1);  // finer, with update 64
  // An exponent is what the sums are made with: with so coarse ones every term rounds to nothing.
  const auto blunt = train_with(g, alone, {}, 1, 0, {0, {{"w0", {-60, 0}}, {"w1", {-60, 0}}, {"idle", {-60, 0}}}});
  REQUIRE(blunt.ok());
  CHECK(blunt->steps[0].grad_norm == 0);
  CHECK(expected->steps[0].grad_norm > 0);
  std::uint64_t seed = 40;
  for (const auto& o : topologies()) {
    CAPTURE(named(o));
    const auto other = train_with(g, o, {}, 8, ++seed, begin);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    check_same(*expected, *other);
  }
}

TEST_CASE("NU-2: ten random tables of who runs which microbatch give the same bits") {
  const Graph g = three_layers(1.0 / microbatches);
  CompileOptions alone;
  alone.stages = stage_meshes({1});
  const auto expected = train_with(g, alone, {}, 4, 0);
  REQUIRE(expected.ok());
  std::mt19937 random(8);
  for (int table = 0; table < 10; ++table) {
    CompileOptions o;
    const std::vector<std::int64_t> dp = table % 2 ? std::vector<std::int64_t>{3, 2} : std::vector<std::int64_t>{4};
    o.stages = stage_meshes(dp);
    o.zero = table % 2 ? table / 2 % 2 : table / 2 % 4;
    for (auto width : dp) {
      auto& stage = o.owners.emplace_back();
      for (std::int64_t m = 0; m < microbatches; ++m)
        stage.push_back(m < width ? static_cast<std::int32_t>(m)
                                  : static_cast<std::int32_t>(random() % static_cast<unsigned>(width)));
      std::shuffle(stage.begin(), stage.end(), random);
    }
    CAPTURE(table);
    const auto other = train_with(g, o, {}, 4, 100 + static_cast<std::uint64_t>(table));
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    check_same(*expected, *other);
  }
}

TEST_CASE(
    "a table of owners that leaves a place without a microbatch, or names none that there is, is refused by its "
    "stage") {
  const Graph g = three_layers(1);
  const auto refusal = [&](std::vector<std::vector<std::int32_t>> owners) {
    CompileOptions o;
    o.stages = stage_meshes({2, 1});
    o.owners = std::move(owners);
    const auto p = compile(g, o);
    CHECK_FALSE(p.ok());
    return p.ok() ? std::string() : p.status().message();
  };
  const std::vector<std::int32_t> one(microbatches, 0), two = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  CHECK(refusal({two}).find("for 1 stages; the plan has 2") != std::string::npos);
  CHECK(refusal({one, one}).find("stage 0: the owners of microbatches are not all of the 2 dp coordinates") !=
        std::string::npos);
  CHECK(refusal({two, two}).find("stage 1:") != std::string::npos);
  auto wrong = two;
  wrong[3] = 2;
  CHECK(refusal({wrong, one}).find("stage 0:") != std::string::npos);
  wrong[3] = -1;
  CHECK(refusal({wrong, one}).find("stage 0:") != std::string::npos);
  CHECK(refusal({{0, 1}, one}).find("2 microbatches have owners, and a step has 12") != std::string::npos);
}
