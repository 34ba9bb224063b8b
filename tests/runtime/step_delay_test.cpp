// Values that a later step reads (Graph::step_delay), against plain loops.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "checkpoint/catalog.h"
#include "devices/files/file_storage.h"
#include "runtime/launch/app.h"
#include "runtime/plan/plan_io.h"
#include "tests/fiber_jobs.h"
#include "tests/runtime/compiled.h"
#include "tests/runtime/mlp.h"
#include "tests/runtime/planted.h"

using namespace mlp;

namespace step_delays {
namespace {

constexpr std::int64_t of_a_step = 7;
const Shape block = {2, 6};  // of a microbatch

/// Small whole numbers that name step, microbatch and element.
float source(std::int64_t step, std::int64_t microbatch, std::int64_t i) {
  return static_cast<float>((step * 5 + microbatch * 3 + i) % 11 - 4);
}

class Source final : public actors::UserActor {
 public:
  Status act(actors::UserCall& call) override {
    for (std::int64_t i = 0; i < call.out[0].size(); ++i)
      call.out[0].as<float>()[i] = source(call.step, call.microbatch, i);
    return {};
  }
};

/// Makes bytes that name step, microbatch and place; reports those that it is given as bytes, which may be of any type.
class Bytes final : public actors::UserActor {
 public:
  static std::byte at(std::int64_t step, std::int64_t microbatch, std::int64_t i) {
    return static_cast<std::byte>((step * 89 + microbatch * 31 + i * 7) & 0xBE);  // no float that is not finite
  }
  Status act(actors::UserCall& call) override {
    const auto bytes = static_cast<std::size_t>(call.in[0].bytes());
    call.report_bytes("seen", {call.in[0].data, bytes});
    for (std::size_t i = 0; i < bytes; ++i)
      call.out[0].data[i] = at(call.step, call.microbatch, static_cast<std::int64_t>(i));
    return {};
  }
};

actors::UserActorSet kinds() {
  App app;
  app.actor<Data>("data");
  app.actor<Source>("source");
  app.actor<Bytes>("bytes");
  return app.actors();
}

/// y(s, m) = source(s, m) + y(s - lag, m) / 2 in unit "play", made in unit "out"; a loss in unit "net" reads what is
/// kept. As units of one model, or "play" in one and the others in another.
Graph recurrence(const kernels::OpSet& set, std::int64_t lag, bool models) {
  Graph g(set);
  g.program("train", {of_a_step, 2});
  const auto begin = [&](const std::string& unit, const std::string& model) {
    if (models) g.model(model);
    g.unit(unit);
  };
  begin("play", "player");
  const Value before = g.step_delay("y", {DType::f32, block}, lag);
  const Value x = g.actor("source", "x", {}, {{"x", {DType::f32, block}}})[0];
  const Value sum = g.op("weighted_sum", {x, before}, {{"b", 0.5}})[0];
  begin("out", "learner");
  const Value y = g.op("scale", {sum, g.param("one", {1}, Init::constant(1), false)})[0];
  g.report("y", g.op("add", {y, y})[0]);
  g.feed_back(before, y);
  begin("net", "learner");
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 5}}}}, {{"stream", std::string("t")}})[0];
  const Value seen = g.op("add", {before, g.actor("source", "z", {}, {{"z", {DType::f32, block}}})[0]})[0];
  const Value h = g.op("linear", {seen, g.param("w", {5, 6}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {h, t}, {{"scale", 0.1}})[0], {});
  return g;
}

/// y of each step, microbatch and element, computed by loops.
float loops(std::int64_t step, std::int64_t microbatch, std::int64_t i, std::int64_t lag) {
  const float before = step < lag ? 0 : loops(step - lag, microbatch, i, lag);
  return source(step, microbatch, i) + before * 0.5f;
}

struct Outcome {
  SimOutcome sim;
  std::map<std::int64_t, std::map<std::int32_t, std::vector<double>>> y;  // by step and microbatch
};

Outcome run(const Plan& p, std::int64_t steps, SimClusterOptions cluster = {}, std::optional<SumState> sums = {},
            std::int64_t copy_every = 0) {
  Outcome out;
  SessionOptions session;
  session.steps = steps;
  session.sums = std::move(sums);
  session.copy_every = copy_every;
  session.lr = [](std::int64_t) { return 1e-2; };
  session.parameters = {"w"};
  session.on_step = [&](const StepResult& step) {
    for (const Report& r : step.reports)
      if (r.name == "y") out.y[step.step][r.microbatch] = r.values;
  };
  const kernels::OpSet there = cluster.accelerator ? cluster.accelerator->with_bodies(ops()) : ops();
  out.sim = simulate_job(p, there, kinds(), std::move(session), cluster);
  REQUIRE_MESSAGE(out.sim.job.status.ok(), out.sim.job.status.message());
  return out;
}

void check_loops(const Outcome& got, std::int64_t steps, std::int64_t lag) {
  CHECK(std::ssize(got.y) == steps);
  for (const auto& [step, of_step] : got.y) {
    CHECK(std::ssize(of_step) == of_a_step);
    for (const auto& [microbatch, values] : of_step) {
      CAPTURE(step);
      CAPTURE(microbatch);
      std::vector<double> expected;
      for (std::int64_t i = 0; i < elements(block); ++i) expected.push_back(2.0 * loops(step, microbatch, i, lag));
      CHECK(values == expected);
    }
  }
}

struct Where {
  std::vector<std::int64_t> dp = {1};  // of each stage
  std::int64_t tp = 1;
  std::int32_t zero = 0;
  bool keeps_version = false;
  std::string text() const {
    std::string all = "tp=" + std::to_string(tp) + " zero=" + std::to_string(zero) + " dp=";
    for (const auto d : dp) all += std::to_string(d) + " ";
    return all;
  }
};

CompileOptions on(const Where& w, bool models) {
  CompileOptions o;
  o.seed = 7;
  o.zero = w.zero;
  o.keeps_version = w.keeps_version;
  if (models) o.models = {{"player", stage_meshes({w.dp[0]}, w.tp)}, {"learner", stage_meshes({w.dp.back()})}};
  else o.stages = stage_meshes(w.dp, w.tp);
  return o;
}

const std::vector<Where> places = {{},
                                   {{2}},
                                   {{3}, 1, 1},
                                   {{2}, 1, 2, true},
                                   {{7}, 1, 1, true},
                                   {{1}, 2},
                                   {{2}, 2, 1},
                                   {{3}, 1, 3},
                                   {{1, 1}},
                                   {{2, 3}, 1, 1},
                                   {{3, 2}, 2, 2},
                                   {{1, 3}, 1, 2},
                                   {{1, 1, 1}},
                                   {{2, 1, 3}, 1},
                                   {{1, 2}, 1, 0, true},
                                   {{4}, 1, 3, true}};

}  // namespace

TEST_CASE(
    "microbatch m of step s reads what microbatch m of step s - lag has made, on any meshes, whatever the timing") {
  for (const std::int64_t lag : {1, 2, 5}) {
    std::optional<std::vector<float>> w;
    for (const bool models : {false, true})
      for (const Where& where : places) {
        if (models && (where.dp.size() > 2 || where.zero == 3)) continue;
        CAPTURE(models);
        CAPTURE(lag);
        CAPTURE(where.text());
        const Graph g = recurrence(ops(), lag, models);
        REQUIRE_MESSAGE(g.status().ok(), g.status().message());
        const Plan p = compiled(g, on(where, models));
        for (const std::uint64_t seed : {0, 1}) {
          const Outcome got = run(p, 7, {.seed = seed});
          check_loops(got, 7, lag);
          const auto& trained = got.sim.job.parameters.at("w").values;
          if (where.tp > 1) continue;
          if (!w) w = trained;
          CHECK(trained == *w);
        }
      }
  }
}

TEST_CASE("a learner that reads what is kept works on a step beside the actor that makes what it reads in the next") {
  // Both work equally long on a step of one microbatch: with the delay a step takes about as long as one of them.
  const auto seconds = [](bool delayed) {
    constexpr int layers = 4, passes = 3;  // a forward and a backward pass
    Graph g(ops());
    g.program("train", {1, 256});
    const kernels::TensorType type{DType::f32, {256, 96}};
    const auto data = [&](const std::string& name) {
      return g.actor("data", name, {}, {{name, type}}, {{"stream", name}})[0];
    };
    std::vector<Value> learned;
    const auto work = [&](Value x, const std::string& unit, int count) {
      for (int l = 0; l < count; ++l) {
        learned.push_back(g.param(unit + std::to_string(l), {96, 96}, Init::normal(0.1f)));
        x = g.op("linear", {x, learned.back()})[0];
      }
      return x;
    };
    g.model("player");
    Value made = work(data("x"), "p", layers * passes);
    learned.clear();
    g.model("learner");
    if (delayed) {
      const Value before = g.step_delay("made", type);
      g.feed_back(before, made);
      made = before;
    }
    const Value y = work(made, "l", layers);
    g.minimize(g.op("mse_loss", {y, data("t")}, {{"scale", 0.1}})[0], {}, learned);
    CompileOptions o;
    o.models = {{"player", stage_meshes({1})}, {"learner", stage_meshes({1})}};
    const Plan p = compiled(g, o);
    GameOptions game;
    game.steps = 6;
    const auto played = play(p, game);
    REQUIRE_MESSAGE(played.ok(), played.status().message());
    return played->step_s;
  };
  CHECK(seconds(true) < 0.7 * seconds(false));
}

TEST_CASE(
    "a wide model works with all its dp coordinates at once, whether it keeps values itself or a narrow one does") {
  const auto seconds = [](std::int64_t players, std::int64_t learners, bool kept_by_player) {
    Graph g(ops());
    g.program("train", {8, 64});
    const kernels::TensorType type{DType::f32, {64, 96}};
    g.model("player");
    Value made = g.actor("data", "x", {}, {{"x", type}}, {{"stream", std::string("x")}})[0];
    for (int l = 0; l < 12; ++l)
      made = g.op("linear", {made, g.param("p" + std::to_string(l), {96, 96}, Init::normal(0.1f))})[0];
    if (kept_by_player) g.step_delay("state", made);
    g.model("learner");
    const Value seen = kept_by_player ? made : g.step_delay("made", made);
    const Value w = g.param("w", {96, 96}, Init::normal(0.1f));
    g.minimize(g.op("mse_loss", {g.op("linear", {seen, w})[0], seen}, {{"scale", 0.1}})[0], {}, {w});
    CompileOptions o;
    o.models = {{"player", stage_meshes({players})}, {"learner", stage_meshes({learners})}};
    GameOptions game;
    game.steps = 5;
    const auto played = play(compiled(g, o), game);
    REQUIRE_MESSAGE(played.ok(), played.status().message());
    return played->step_s;
  };
  for (const bool kept_by_player : {false, true})
    for (const std::int64_t learners : {1, 2, 4}) {
      CAPTURE(learners);
      CAPTURE(kept_by_player);
      CHECK(seconds(4, learners, kept_by_player) < 0.7 * seconds(1, learners, kept_by_player));
    }
}

TEST_CASE("an act that keeps a microbatch, and one that reads it, cost that microbatch, however many a step has") {
  const auto cost_s = [](std::int64_t count) {
    Graph g(ops());
    g.program("train", {count, 64});
    const kernels::TensorType type{DType::f32, {64, 96}};
    const Value x = g.actor("data", "x", {}, {{"x", type}}, {{"stream", std::string("x")}})[0];
    g.unit("kept");
    const Value before = g.step_delay("kept", x);
    g.unit("net");
    const Value w = g.param("w", {96, 96}, Init::normal(0.1f));
    g.minimize(g.op("mse_loss", {g.op("linear", {before, w})[0], before}, {{"scale", 0.1}})[0], {});
    const Plan p = compiled(g, {});
    double all = 0;
    for (const PlanActor& a : p.roles[0].actors)
      if (a.name == "kept.kept.next" || a.name == "kept.fwd") all += a.cost_s;
    CHECK(all > 0);
    return all;
  };
  CHECK(cost_s(64) == doctest::Approx(cost_s(2)));
}

TEST_CASE("what is kept may be any number, infinite ones and NaN included: it is no weight") {
  class Masks final : public actors::UserActor {
   public:
    Status act(actors::UserCall& call) override {
      for (std::int64_t i = 0; i < call.out[0].size(); ++i)
        call.out[0].as<float>()[i] = i % 2 == 0 ? -std::numeric_limits<float>::infinity()
                                                : std::numeric_limits<float>::quiet_NaN();
      return {};
    }
  };
  char name[] = "/tmp/troupe-kept-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  App app;
  app.actor<Data>("data");
  app.actor<Masks>("masks");
  Graph g(app.ops());
  g.program("train", {4, 1});
  g.step_delay("kept", g.actor("masks", "masks", {}, {{"m", {DType::f32, {1, 5}}}})[0]);
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 3}}}}, {{"stream", std::string("x")}})[0];
  const Value y = g.op("linear", {x, g.param("w", {3, 3}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {y, x}, {{"scale", 0.1}})[0], {});
  CompileOptions o = on({{2}, 1, 1}, false);
  o.snapshots = 1;
  JobOptions job;
  job.session.steps = 4;
  job.checkpoint.dir = name;
  const auto end = app.simulate(compiled(g, o), job, 3);
  REQUIRE_MESSAGE(end.job.status.ok(), end.job.status.message());
  FileStorage storage;
  CHECK(checkpoint::Catalog(storage, name).entries()->back().folder.find("4") != std::string::npos);
  std::filesystem::remove_all(name);
}

TEST_CASE("a place is lost at any event: what is kept goes on, bit for bit, from versions and from copies") {
  int lost = 0;
  for (const bool models : {false, true})
    for (const bool copies : {false, true}) {
      CompileOptions o = on(
          {.dp = models ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{2, 2}, .zero = 1}, models);
      o.keeps_version = !copies;
      o.keeps_copies = copies;
      const Plan p = compiled(recurrence(ops(), 2, models), o);
      const std::int64_t copy_every = copies ? 2 : 0;
      const Outcome whole = run(p, 6, {}, {}, copy_every);
      check_loops(whole, 6, 2);
      for (std::int64_t at = 60; at < whole.sim.run.events; at += whole.sim.run.events / 14) {
        CAPTURE(at);
        SimClusterOptions cluster;
        cluster.seed = static_cast<std::uint64_t>(at);
        cluster.recovers = true;
        cluster.stall_s = 120;
        cluster.faults = {{.at_event = at, .place = static_cast<Rank>(at % p.workers())}};
        const Outcome one = run(p, 6, cluster, {}, copy_every);
        lost += one.sim.run.restarts;
        check_loops(one, 6, 2);
        CHECK(one.sim.job.parameters.at("w").values == whole.sim.job.parameters.at("w").values);
      }
    }
  CHECK(lost > 25);
}

TEST_CASE("a void step is kept as others are") {
  for (const bool keeps : {false, true})
    for (const std::int64_t lag : {1, 3}) {
      const Plan p = compiled(recurrence(ops(), lag, false), on({.dp = {2}, .keeps_version = keeps}, false));
      SumState sums;
      sums.scales["w"] = {60, 0};  // too fine for any gradient: the first step is void
      const Outcome got = run(p, 5, {}, sums);
      CHECK(got.sim.run.steps[0].void_step);
      check_loops(got, 5, lag);
    }
}

TEST_CASE("what is kept is saved, and restored on any mesh, bit by bit: a run goes on as if it had stayed") {
  char name[] = "/tmp/troupe-kept-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  const std::string folder = name;
  App app;
  app.actor<Data>("data");
  app.actor<Source>("source");
  const std::int64_t lag = 2;
  const Graph g = recurrence(app.ops(), lag, false);
  const auto go = [&](const Where& where, std::int64_t first, std::int64_t steps, const std::string& to) {
    CompileOptions o = on(where, false);
    o.snapshots = 1;
    Outcome out;
    JobOptions job;
    job.session.first_step = first;
    job.session.steps = steps;
    job.session.parameters = {"w", "y", "y.lag1"};
    job.session.on_step = [&](const StepResult& step) {
      for (const Report& r : step.reports)
        if (r.name == "y") out.y[step.step][r.microbatch] = r.values;
    };
    job.checkpoint.dir = folder + "/" + to;
    if (first > 0) {
      FileStorage storage;
      const checkpoint::Catalog saved(storage, folder + "/saved");
      job.checkpoint.restore = saved.path(saved.entries()->back().folder);
    }
    out.sim = app.simulate(compiled(g, o), job, 3);
    REQUIRE_MESSAGE(out.sim.job.status.ok(), out.sim.job.status.message());
    return out;
  };
  const Outcome saved = go({{2}, 1, 1}, 0, 5, "saved");
  const Outcome straight = go({}, 0, 9, "straight");
  // Step 4 has left y of step 4; y.lag1 is read by step 6, y by step 5.
  for (std::int64_t m = 0; m < of_a_step; ++m)
    for (std::int64_t i = 0; i < elements(block); ++i) {
      const auto at = static_cast<std::size_t>(m * elements(block) + i);
      CHECK(saved.sim.job.parameters.at("y").values[at] == loops(3, m, i, lag));
      CHECK(saved.sim.job.parameters.at("y.lag1").values[at] == loops(4, m, i, lag));
    }
  int number = 0;
  for (const Where& where : places) {
    CAPTURE(where.text());
    const Outcome more = go(where, 5, 9, "more" + std::to_string(number++));
    check_loops(more, 4, lag);
    if (where.tp == 1) CHECK(more.sim.job.parameters.at("w").values == straight.sim.job.parameters.at("w").values);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("any type is kept bit for bit, on the host and on a device") {
  for (const DType dtype : {DType::u8, DType::bf16, DType::i32, DType::f32, DType::i64, DType::f64})
    for (const Shape& shape : {Shape{1}, Shape{1, 3}, Shape{3, 70, 31}})
      for (const auto& dp : {std::vector<std::int64_t>{1}, std::vector<std::int64_t>{2, 3}})
        for (const bool device : {false, true}) {
          CAPTURE(size_of(dtype));
          CAPTURE(to_string(shape));
          Graph g(ops());
          g.program("train", {of_a_step, 1});
          g.unit("play");
          const Value before = g.step_delay("kept", {dtype, shape}, 2);
          g.feed_back(before, g.actor("bytes", "bytes", {before}, {{"out", {dtype, shape}}})[0]);
          g.unit("net");
          const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 3}}}}, {{"stream", std::string("x")}})[0];
          g.minimize(g.op("mse_loss", {g.op("linear", {x, g.param("w", {3, 3}, Init::normal(0.3f))})[0], x},
                          {{"scale", 0.1}})[0],
                     {});
          const Plan p = compiled(g, on({.dp = dp, .zero = 1}, false));
          SimClusterOptions cluster;
          if (device) cluster.accelerator = troupe::test::fibers_alone();
          std::int64_t seen = 0;
          SessionOptions session;
          session.steps = 4;
          session.on_step = [&](const StepResult& step) {
            for (const Report& r : step.reports) {
              if (r.name != "seen") continue;
              ++seen;
              std::vector<std::byte> expected(r.bytes.size());
              for (std::size_t i = 0; step.step >= 2 && i < expected.size(); ++i)
                expected[i] = Bytes::at(step.step - 2, r.microbatch, static_cast<std::int64_t>(i));
              CHECK(r.bytes == expected);
              CHECK(std::ssize(r.bytes) == elements(shape) * size_of(dtype));
            }
          };
          const kernels::OpSet there = device ? cluster.accelerator->with_bodies(ops()) : ops();
          const auto end = simulate_job(p, there, kinds(), std::move(session), cluster);
          REQUIRE_MESSAGE(end.job.status.ok(), end.job.status.message());
          CHECK(seen == 4 * of_a_step);
        }
}

TEST_CASE("what only updates read, ZeRO shares and copies beside: a delay over steps of two programs, each its own") {
  const auto build = [] {
    Graph g(ops());
    const auto program = [&](const std::string& name, std::int64_t microbatches, std::int64_t lag) {
      g.program(name, {microbatches, 2});
      g.unit(name);
      const Value before = g.step_delay(name + ".y", {DType::f32, block}, lag);
      const Value x = g.actor("source", name + ".x", {}, {{"x", {DType::f32, block}}})[0];
      const Value y = g.op("weighted_sum", {x, before}, {{"b", 0.5}})[0];
      g.feed_back(before, y);
      g.report(name, g.op("add", {y, y})[0]);
      const Value w = g.param(name + ".w", {6, 6}, Init::normal(0.3f));
      g.minimize(g.op("mse_loss", {g.op("linear", {y, w})[0], x}, {{"scale", 0.1}})[0], {});
    };
    program("one", 7, 1);
    program("two", 4, 3);
    return g;
  };
  const Graph g = build();
  REQUIRE_MESSAGE(g.status().ok(), g.status().message());
  for (const Where& where :
       std::vector<Where>{{}, {{2}, 1, 1}, {{3}, 1, 3}, {{2, 3}, 1, 2}, {{2, 2}, 1, 2}, {{4}, 1, 1, true}}) {
    CAPTURE(where.text());
    SessionOptions session;
    session.steps = 6;
    std::int64_t checked = 0;
    session.on_step = [&](const StepResult& step) {
      for (const Report& r : step.reports) {
        std::vector<double> expected;
        for (std::int64_t i = 0; i < elements(block); ++i)
          expected.push_back(2.0 * loops(step.step, r.microbatch, i, r.name == "one" ? 1 : 3));
        CHECK(r.values == expected);
        ++checked;
      }
    };
    const auto end = simulate_job(compiled(g, on(where, false)), ops(), kinds(), std::move(session), {});
    REQUIRE_MESSAGE(end.job.status.ok(), end.job.status.message());
    CHECK(checked == 6 * (7 + 4));
  }
}

TEST_CASE("stages follow the data of a step: what makes a value for the next step is behind what reads it") {
  Graph g(ops());
  g.program("train", {4, 2});
  g.unit("out");  // named first, and its first node is a source
  const Value z = g.actor("source", "z", {}, {{"z", {DType::f32, block}}})[0];
  g.unit("play");
  const Value before = g.step_delay("y", {DType::f32, block});
  const Value h = g.op("linear", {before, g.param("a", {6, 6}, Init::normal(0.3f))})[0];
  g.unit("out");
  const Value y = g.op("add", {h, z})[0];
  g.feed_back(before, y);
  g.minimize(
      g.op("mse_loss", {g.op("linear", {y, g.param("b", {6, 6}, Init::normal(0.3f))})[0], z}, {{"scale", 0.1}})[0], {});
  for (const Pipeline& pipeline : {Pipeline{}, Pipeline{Pipeline::Kind::zero_bubble, 1}}) {
    CompileOptions o;
    o.stages = stage_meshes({1, 1});
    o.pipeline = pipeline;
    const Plan p = compiled(g, o);
    CHECK(p.roles[0].units == std::vector<std::string>{"play"});
    CHECK(p.roles[1].units == std::vector<std::string>{"out"});
  }
}

namespace {

/// Values of seven types, kept for one step, u8 for two; what each actor sees is reported.
Graph of_all_types(const kernels::OpSet& set) {
  Graph g(set);
  g.program("train", {of_a_step, 1});
  g.unit("play");
  for (const DType dtype : {DType::u8, DType::bf16, DType::i32, DType::f32, DType::i64, DType::f64, DType::f16}) {
    const std::string name = to_string(dtype);
    const Shape shape = {2, 9};
    const Value before = g.step_delay(name, {dtype, shape}, dtype == DType::u8 ? 2 : 1);
    g.feed_back(before, g.actor("bytes", name + ".bytes", {before}, {{"out", {dtype, shape}}})[0]);
  }
  g.unit("net");
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 3}}}}, {{"stream", std::string("x")}})[0];
  const Value y = g.op("linear", {x, g.param("w", {3, 3}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {y, x}, {{"scale", 0.1}})[0], {});
  return g;
}

/// Checks each report of of_all_types(); counts them.
std::function<void(const StepResult&)> checks_types(std::int64_t& seen) {
  return [&seen](const StepResult& step) {
    for (const Report& r : step.reports) {
      if (r.name != "seen") continue;
      ++seen;
      const std::int64_t lag = r.bytes.size() == 18 ? 2 : 1;  // 18 elements of u8
      std::vector<std::byte> expected(r.bytes.size());
      for (std::size_t i = 0; step.step >= lag && i < expected.size(); ++i)
        expected[i] = Bytes::at(step.step - lag, r.microbatch, static_cast<std::int64_t>(i));
      CHECK(r.bytes == expected);
    }
  };
}

}  // namespace

TEST_CASE("values of all types go on when a place is lost, for good or not, and when a run goes on on another mesh") {
  const Graph g = of_all_types(ops());
  REQUIRE_MESSAGE(g.status().ok(), g.status().message());
  int lost = 0;
  for (const bool copies : {false, true})
    for (std::int64_t at = 80; at < 1600; at += 190) {
      CompileOptions o = on({.dp = {3}, .zero = 1}, false);
      o.keeps_version = !copies;
      o.keeps_copies = copies;
      SessionOptions session;
      session.steps = 6;
      session.copy_every = copies ? 2 : 0;
      std::int64_t seen = 0;
      session.on_step = checks_types(seen);
      SimClusterOptions cluster;
      cluster.seed = static_cast<std::uint64_t>(at);
      cluster.recovers = true;
      cluster.stall_s = 120;
      cluster.faults = {{.at_event = at, .place = static_cast<Rank>(at % 3)}};
      const SimOutcome end = simulate_job(compiled(g, o), ops(), kinds(), std::move(session), cluster);
      REQUIRE_MESSAGE(end.job.status.ok(), end.job.status.message());
      lost += end.run.restarts;
      CHECK(seen == 6 * of_a_step * 7);
    }
  CHECK(lost > 8);

  char name[] = "/tmp/troupe-types-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  const std::string folder = name;
  App app;
  app.actor<Data>("data");
  app.actor<Bytes>("bytes");
  int number = 0;
  const auto go = [&](const Where& where, std::int64_t first, std::int64_t steps) {
    CompileOptions o = on(where, false);
    o.snapshots = 1;
    std::int64_t seen = 0;
    JobOptions job;
    job.session.first_step = first;
    job.session.steps = steps;
    job.session.on_step = checks_types(seen);
    job.checkpoint.dir = folder + "/" + std::to_string(number++);
    if (first > 0) {
      FileStorage storage;
      const checkpoint::Catalog saved(storage, folder + "/0");
      job.checkpoint.restore = saved.path(saved.entries()->back().folder);
    }
    const SimOutcome end = app.simulate(compiled(of_all_types(app.ops()), o), job, 3);
    REQUIRE_MESSAGE(end.job.status.ok(), end.job.status.message());
    CHECK(seen == (steps - first) * of_a_step * 7);
  };
  go({{2}, 1, 1}, 0, 4);
  for (const Where& where : std::vector<Where>{{}, {{3}, 1, 3}, {{2, 2}, 2, 0}, {{7}, 1, 1, true}}) go(where, 4, 7);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a void step keeps values of every size of element, with two versions as in place") {
  for (const bool keeps : {false, true}) {
    Graph g(ops());
    g.program("train", {1, 1});
    const Value before = g.step_delay("kept", {DType::u8, {512, 512}});
    g.feed_back(before, g.actor("bytes", "bytes", {before}, {{"out", {DType::u8, {512, 512}}}})[0]);
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 3}}}}, {{"stream", std::string("x")}})[0];
    const Value y = g.op("linear", {x, g.param("w", {3, 3}, Init::normal(0.3f))})[0];
    g.minimize(g.op("mse_loss", {y, x}, {{"scale", 0.1}})[0], {});
    SessionOptions session;
    session.steps = 3;
    session.sums = SumState{};
    session.sums->scales["w"] = {60, 0};
    std::int64_t seen = 0;
    session.on_step = [&](const StepResult& step) {
      for (const Report& r : step.reports) {
        if (r.name != "seen") continue;
        ++seen;
        bool right = true;
        for (std::size_t i = 0; i < r.bytes.size(); ++i)
          right = right && r.bytes[i] == (step.step == 0 ? std::byte{0}
                                                         : Bytes::at(step.step - 1, 0, static_cast<std::int64_t>(i)));
        CHECK(right);
      }
    };
    const auto end = simulate_job(compiled(g, on({.keeps_version = keeps}, false)), ops(), kinds(), session, {});
    REQUIRE_MESSAGE(end.job.status.ok(), end.job.status.message());
    CHECK(end.run.steps[0].void_step);
    CHECK(seen == 3);
    session.parameters = {"kept"};
    const auto wanted = simulate_job(compiled(g, on({}, false)), ops(), kinds(), session, {});
    CHECK(wanted.job.status.message().find("'kept', which a delay keeps as u8: f32 alone is brought") !=
          std::string::npos);
  }
}

TEST_CASE("a game of few microbatches stands for none with a delay over steps") {
  for (const auto& dp : std::vector<std::vector<std::int64_t>>{{1}, {2}, {2, 2}}) {
    Graph g(ops());
    g.program("train", {512, 1});
    g.unit("play");
    const Value before = g.step_delay("y", {DType::f32, {1, 6}});
    g.unit("net");
    const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {1, 6}}}}, {{"stream", std::string("t")}})[0];
    const Value y = g.op("linear", {before, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
    g.feed_back(before, y);
    g.minimize(g.op("mse_loss", {y, t}, {{"scale", 0.1}})[0], {});
    const auto played = play(compiled(g, on({dp}, false)));
    REQUIRE_MESSAGE(played.ok(), played.status().message());
    CHECK(played->played_microbatches == 512 / dp[0]);
    CHECK(std::count_if(played->acts.begin(), played->acts.end(), [](const GameAct& a) {
            return a.rank == 0 && a.step == 0 && a.actor == "y.kept.next";
          }) == 512 / dp[0]);
  }
}

TEST_CASE("a place votes for a step when its microbatches are kept") {
  const Plan p = compiled(recurrence(ops(), 1, true), on({{2, 3}, 1, 1}, true));
  int closers = 0;
  for (const PlanRole& role : p.roles)
    for (const PlanActor& a : role.actors) closers += a.name == "y.kept.next" && a.closes_step;
  CHECK(closers == 1);
}

TEST_CASE("a plan with a delay over steps is the same when it has been written and read") {
  const Plan p = compiled(recurrence(ops(), 2, true), on({{2, 3}, 1, 1}, true));
  const auto read = read_plan(write_plan(p));
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(write_plan(*read) == write_plan(p));
}

TEST_CASE("a delay over steps is refused by name where no version could have it") {
  const kernels::TensorType row{DType::f32, {2, 6}};
  const auto says = [&](const std::function<void(Graph&)>& build, CompileOptions o = {}) -> std::string {
    Graph g(ops());
    g.program("train", {4, 2});
    g.unit("main");
    build(g);
    if (!g.status().ok()) return g.status().message();
    const auto p = compile(g, o);
    return p.ok() ? "" : p.status().message();
  };
  const auto train = [](Graph& g) {
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
    const Value y = g.op("linear", {x, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
    g.minimize(g.op("mse_loss", {y, x}, {{"scale", 0.1}})[0], {});
    return y;
  };
  const auto has = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(says([&](Graph& g) { g.feed_back(g.step_delay("d", row), train(g)); }).empty());
  has(says([&](Graph& g) { g.step_delay("d", row, 0); }),
      "delay 'd' over steps has a lag of 0: possible are 1 to 1000");
  has(says([&](Graph& g) { g.step_delay("d", row, 1001); }), "lag of 1001");
  has(says([&](Graph& g) { g.step_delay("d", {DType::f32, {2, 0}}); }), "delay 'd' over steps");
  const std::string taken = "delay 'd' over steps: an actor, op, parameter or other delay of this graph has this name";
  has(says([&](Graph& g) { g.step_delay("d", row), g.step_delay("d", row); }), taken);
  has(says([&](Graph& g) { g.param("d", {2}, {}), g.step_delay("d", row); }), taken);
  has(says([&](Graph& g) { g.actor("data", "d", {}, {{"x", row}}), g.step_delay("d", row); }), taken);
  has(says([&](Graph& g) {
        g.step_delay("d", {DType::f32, {}});
      }),
      "expected a tensor with a dim or more (of one number: {1})");
  has(says([&](Graph& g) { g.step_delay("d", {DType::sum64, {2}}); }), "and no exact sum");
  has(says([&](Graph& g) {
        g.step_delay("d", row), g.param("d", {4, 2, 6}, {});
      }),
      "parameter 'd' is what a step_delay() keeps");
  has(says([&](Graph& g) { g.program("s", {.microbatches = 2, .stateful = true}), g.step_delay("d", row); }),
      "delay 'd' over steps in program 's', which is stateful");
  has(says([&](Graph& g) { train(g), g.step_delay("d", row); }),
      "delay 'd' of program 'train' has no value to give: say feed_back(...)");
  has(says([&](Graph& g) {
        const Value d = g.step_delay("d", row);
        g.feed_back(d, g.op("add", {d, d})[0]);
      }),
      "delay 'd' over steps: program 'train' minimizes nothing");
  has(says([&](Graph& g) {
        const Value y = train(g);
        g.program("other", {4, 2});
        const Value d = g.step_delay("d", row);
        g.feed_back(d, g.op("add", {d, d})[0]);
        (void)y;
      }),
      "delay 'd' over steps: program 'other' minimizes nothing");
  has(says([&](Graph& g) {
        const Value y = train(g), d = g.step_delay("d", row);
        g.feed_back(d, y), g.feed_back(d, y);
      }),
      "feed_back() to delay 'd' is the second");
  has(says([&](Graph& g) {
        const Value y = train(g);
        g.feed_back(g.step_delay("d", {DType::f32, {2, 5}}), y);
      }),
      "the delay was declared as f32 [2, 5]");
  has(says([&](Graph& g) {
        train(g);
        g.feed_back(g.step_delay("d", {DType::f32, {6, 6}}), g.param("w", {6, 6}, Init::normal(0.3f)));
      }),
      "'w' is a parameter");
  has(says([&](Graph& g) { g.op("kept_microbatch", {train(g)}); }), "is an end of a delay: say step_delay()");
  has(says([&](Graph& g) {
        const Value y = train(g);
        g.shared_unit("all");
        g.feed_back(g.step_delay("d", row), y);
      }),
      "delay 'd' is in the shared unit 'all'");
  CompileOptions owners;
  owners.stages = stage_meshes({2});
  owners.owners = {{0, 1, 1, 1}};
  has(says([&](Graph& g) { g.feed_back(g.step_delay("d", row), train(g)); }, owners),
      "program 'train' has a delay over steps on a stage of several dp coordinates");
  owners.stages = stage_meshes({1, 2});
  owners.stage_of_unit = {0, 1};
  owners.owners = {{0, 0, 0, 0}, {1, 1, 1, 0}};
  CHECK(says([&](Graph& g) { g.feed_back(g.step_delay("d", row), train(g)), g.unit("more"); }, owners).empty());
  CompileOptions two;
  two.stages = stage_meshes({2, 3});
  two.stage_of_unit = {0, 1};
  has(says(
          [&](Graph& g) {
            const Value y = train(g);
            g.feed_back(g.step_delay("d", row), y);
            g.unit("more");
            g.feed_back(g.step_delay("e", row), y);
          },
          two),
      "delays 'd' and 'e' over steps of program 'train' are on stages with dp=2 and dp=3");
  CompileOptions fed;
  fed.stages = stage_meshes({2});
  has(says(
          [&](Graph& g) {
            const Value y = g.op("add", {train(g), g.feed("f", row)})[0];
            g.feed_back(g.step_delay("d", row), y);
          },
          fed),
      "delay 'd' over steps is on stage 0 with dp=2, and program 'train' runs its microbatches in the order of their "
      "numbers");
  CompileOptions wide;
  wide.stages = stage_meshes({5});
  has(says([&](Graph& g) { g.feed_back(g.step_delay("d", row), train(g)); }, wide), "4 microbatches");
}

TEST_CASE("a plan whose delay over steps is wrong is refused, by the name of the channel, op or program") {
  const Plan good = compiled(recurrence(ops(), 1, false), on({{2, 3}, 1, 1}, false));
  const auto refused = [&](const std::string& name, const std::function<void(Plan&)>& damage) {
    Plan p = good;
    damage(p);
    CHECK(write_plan(p) != write_plan(good));
    Status s = verify(p);
    if (s.ok())
      for (std::int32_t stage = 0; s.ok() && stage < p.stages; ++stage) s = check_ops(p, stage, ops());
    CAPTURE(name);
    CAPTURE(s.message());
    CHECK_FALSE(s.ok());
    CHECK(s.message().find(name) != std::string::npos);
  };
  const auto kept = [](Plan& p) -> PlanChannel& {
    for (PlanRole& role : p.roles)
      for (PlanChannel& c : role.channels)
        if (c.kind == PlanChannel::Kind::kept) return c;
    FAIL("no channel keeps anything");
    return p.roles[0].channels[0];
  };
  Plan named = good;
  const std::string channel = kept(named).name;
  refused(channel, [&](Plan& p) { kept(p).kind = PlanChannel::Kind::activation; });
  refused(channel, [&](Plan& p) { kept(p).slots = 2; });
  refused(channel, [&](Plan& p) { kept(p).rate = Rate::microbatch; });
  refused(channel, [&](Plan& p) { kept(p).tensors.push_back(kept(p).tensors[0]), kept(p).offsets.push_back(0); });
  const auto each_op = [](Plan& p, const std::string& kind, const std::function<void(Plan&, PlanOp&)>& change) {
    for (PlanRole& role : p.roles)
      for (PlanActor& a : role.actors)
        for (PlanOp& op : a.ops)
          if (op.op == kind) change(p, op);
  };
  refused("y", [&](Plan& p) { p.programs[0].blocks = 1; });
  refused("y", [&](Plan& p) {  // whole at each place
    each_op(p, "kept_microbatch", [](Plan& q, PlanOp& op) {
      q.tensors[op.in[0].tensor].sbp[dp_axis(q.meshes[q.tensors[op.in[0].tensor].mesh])] = Sbp::B();
    });
  });
  refused("y.kept.next", [&](Plan& p) { each_op(p, "keep_microbatch", [](Plan&, PlanOp& op) { op.op = "relu"; }); });
  refused("y", [&](Plan& p) {  // the update makes it of what it was
    for (PlanRole& role : p.roles)
      for (PlanActor& a : role.actors)
        if (a.kind == PlanActor::Kind::update)
          for (PlanOp& op : a.ops)
            if (op.op == "update.copy") op.out[0] = op.in[0];
  });
}

}  // namespace step_delays
