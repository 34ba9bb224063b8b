// Graphs in which several programs train, each with its own loss and optimizer, a step at a time together: what comes
// out, on any mesh, after any loss.
#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "tests/runtime/two_nets.h"

using namespace mlp;

TEST_CASE(
    "two programs train together, each with the losses, norms and parameters that it has alone, bit for bit, on any "
    "mesh, in any order of declaration") {
  constexpr std::int64_t steps = 4;
  std::map<std::string, Trained> alone;
  for (const Net& net : {small, large}) {
    alone[net.name] = train_net(compiled(nets({net}), one_place()), net, steps);
    const auto& losses = alone[net.name].steps;
    CHECK(losses.back()[0] < losses.front()[0]);
  }
  CHECK(alone["small"].steps[2][2] == 1e-2 / 3);
  CHECK(alone["large"].steps[2][2] == 3e-3f);
  for (const bool turned : {false, true})
    for (const CompileOptions& o : meshes_of_nets()) {
      const Plan p = compiled(turned ? nets({large, small}) : nets({small, large}), o);
      INFO(to_string(p.meshes[0]), ", ", p.stages, " stages, ZeRO ", o.zero, turned ? ", turned" : "");
      for (const Net& net : {small, large})
        for (const std::uint64_t seed : {0, 5}) check_same(train_net(p, net, steps, {.seed = seed}), alone[net.name]);
    }
}

TEST_CASE("clip, divisor and learning rate are those of a program's entry, and without one those of all") {
  const Plan both = compiled(nets({small, large}), one_place());
  const auto told = [&](const Plan& p, const SessionOptions& options, const std::string& net) {
    const SimOutcome out = simulate_job(p, ops(), actor_set(), options, {});
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    std::vector<std::array<double, 3>> steps;
    for (const StepResult& step : out.run.steps) {
      const ProgramResult& of = step.program == net ? step : step.others.at(0);
      CHECK(of.program == net);
      steps.push_back({of.loss, of.grad_norm, of.lr});
    }
    return steps;
  };
  const auto lr = [](std::int64_t step) { return 0.02 / static_cast<double>(1 + step); };
  SessionOptions all;
  all.steps = 4;
  all.clip = 0.05;
  all.loss_divisor = 3;
  all.lr = lr;
  // Of one program alone, the options of all say what its entry says.
  SessionOptions own;
  own.steps = 4;
  own.programs["large"] = {.clip = 0.05, .loss_divisor = 3, .lr = lr};
  const Plan alone = compiled(nets({large}), one_place());
  const auto large_steps = told(alone, all, "large");
  CHECK(told(alone, own, "large") == large_steps);
  CHECK(told(both, own, "large") == large_steps);
  CHECK(told(both, all, "large") == large_steps);
  CHECK(large_steps[1][1] > 0.05);  // it is clipped
  CHECK(large_steps[3][2] == 0.02 / 4);
  SessionOptions whole = own;
  whole.programs["large"].clip = 0;
  CHECK(told(alone, whole, "large")[0] == large_steps[0]);
  CHECK(told(alone, whole, "large")[3] != large_steps[3]);
  whole = own;
  whole.programs["large"].loss_divisor = 1;
  CHECK(told(both, whole, "large")[2][0] == doctest::Approx(3 * large_steps[2][0]).epsilon(1e-12));
  // An entry takes nothing from the options of all: it has no clip, no divisor, the optimizer's learning rate.
  SessionOptions mixed = all;
  mixed.programs["large"] = {};
  const auto bare = told(both, mixed, "large");
  CHECK(bare[0][0] == doctest::Approx(3 * large_steps[0][0]).epsilon(1e-12));
  CHECK(bare[3][2] == 3e-3f);
  SessionOptions nothing;
  nothing.steps = 4;
  CHECK(bare == told(alone, nothing, "large"));
  CHECK(told(both, mixed, "small") == told(compiled(nets({small}), one_place()), all, "small"));
}

TEST_CASE("two programs that train under tp have, each, the bits of the same mesh alone") {
  CompileOptions o;
  o.stages = stage_meshes({2}, 2);
  o.seed = 7;
  const Plan both = compiled(nets({small, large}), o);
  for (const Net& net : {small, large})
    check_same(train_net(both, net, 3), train_net(compiled(nets({net}), o), net, 3));
}

namespace {

/// With which the first steps of a net overflow.
SumState overflowing(const Net& net) {
  SumState sums;
  for (const char* layer : {"first", "second"})
    for (const char* part : {".up", ".down"}) sums.scales[net.name + "." + layer + part] = {60, 0};
  return sums;
}

}  // namespace

TEST_CASE("a place of a job with two programs that train is lost: each goes on, bit for bit, with its own updates") {
  struct Case {
    std::vector<std::int64_t> dp;
    std::int32_t zero;
    std::int64_t copy_every;  ///< 0: the plan keeps versions
  };
  int lost = 0;
  for (const Case& c : {Case{{2, 1}, 0, 0}, Case{{2}, 1, 0}, Case{{3}, 3, 0}, Case{{2}, 0, 1}, Case{{2}, 1, 2}}) {
    CAPTURE(c.zero);
    CAPTURE(c.copy_every);
    CompileOptions o;
    o.stages = stage_meshes(c.dp);
    o.zero = c.zero;
    o.keeps_version = c.copy_every == 0;
    o.keeps_copies = c.copy_every > 0;
    o.seed = 7;
    const Plan p = compiled(nets({large, small}), o);
    const auto run = [&](const Net& net, const SimClusterOptions& cluster) {
      return train_net(p, net, 5, cluster, overflowing(small), c.copy_every);
    };
    const Trained whole_small = run(small, {}), whole_large = run(large, {});
    CHECK(whole_small.run.sums.programs.at("small").updates < 5);
    CHECK(whole_small.run.sums.programs.at("large").updates == 5);
    for (std::int64_t at = 60; at < whole_small.run.events; at += whole_small.run.events / 7) {
      SimClusterOptions cluster;
      cluster.seed = static_cast<std::uint64_t>(at);
      cluster.recovers = true;
      cluster.stall_s = 120;
      cluster.faults = {{.at_event = at, .place = static_cast<Rank>(at % p.workers())}};
      const Trained one = run(small, cluster);
      lost += one.run.restarts;
      check_same(one, whole_small);
      CHECK(one.run.sums == whole_small.run.sums);
      check_same(run(large, cluster), whole_large);
    }
  }
  CHECK(lost > 15);
}

TEST_CASE("a void step of one program is none of the other: its updates go on, and are counted for each") {
  for (const bool turned : {false, true})
    for (const Net& bad : {small, large})
      for (const std::int64_t dp : {1, 2}) {
        CAPTURE(turned);
        CAPTURE(bad.name);
        const Net& good = bad.name == "small" ? large : small;
        CompileOptions o;
        o.stages = stage_meshes({dp});
        o.seed = 7;
        const Plan p = compiled(turned ? nets({small, large}) : nets({large, small}), o);
        const SumState sums = overflowing(bad);
        const Trained with = train_net(p, good, 4, {}, sums);
        check_same(with, train_net(compiled(nets({good}), one_place()), good, 4));
        const auto of = [&](const StepResult& step, const Net& net) -> const ProgramResult& {
          return step.program == net.name ? step : step.others.at(0);
        };
        const StepResult &first = with.run.steps.front(), &last = with.run.steps.back();
        CHECK_FALSE(of(first, good).void_step);
        CHECK(of(first, bad).void_step);
        CHECK(of(first, bad).void_parameter.starts_with(bad.name + "."));
        CHECK_FALSE(of(last, bad).void_step);
        REQUIRE(with.run.sums.programs.size() == 2);
        CHECK(with.run.sums.programs.at(good.name) == UpdateCount{4, 0});
        CHECK(with.run.sums.programs.at(bad.name).updates < 4);
        CHECK(with.run.sums.updates == with.run.sums.programs.at(p.programs[0].name).updates);
        const Trained alone = train_net(compiled(nets({bad}), one_place()), bad, 4, {}, sums);
        CHECK(alone.run.sums.programs.empty());
        check_same(train_net(p, bad, 4, {}, sums), alone);
      }
}

namespace {

constexpr std::int64_t game_steps = 6;
constexpr float game_lr = 0.25f;

/// Two players with a number each: a lowers (a - b - 1)^2, b lowers (b + 2a)^2, each for the other's number as it is.
Graph two_players(const std::string& order) {
  Graph g(ops());
  const auto value = [&](const char* name, float init) { return g.param(name, {1, 1}, Init::constant(init), false); };
  const auto one = [&](const std::string& name, double x) {
    return g.actor("constant", name, {}, {{"x", {DType::f32, {1, 1}}}}, {{"x", x}})[0];
  };
  for (const char player : order) {
    g.program({player}, {1, 1});
    g.unit({player});
    const Value a = value("a", 0.5f), b = value("b", -1.5f);
    kernels::AdamW hyper;
    hyper.lr = game_lr;
    hyper.beta1 = hyper.beta2 = 0;  // then each update is lr times the gradient's sign
    hyper.eps = 1e-12f;
    const auto times = [&](Value w, double x) { return g.op("linear", {one({player, x < 0 ? 'm' : 'p'}, x), w})[0]; };
    if (player == 'a')
      g.minimize(g.op("mse_loss", {g.op("add", {times(a, 1), times(b, -1)})[0], one("t", 1)}, {})[0], hyper, {a});
    else
      g.minimize(
          g.op("mse_loss", {g.op("add", {times(b, 1), g.op("linear", {one("two", 2), a})[0]})[0], one("z", 0)}, {})[0],
          hyper, {b});
  }
  return g;
}

actors::UserActorSet constants() {
  class Constant final : public actors::UserActor {
   public:
    explicit Constant(double x) : x_(static_cast<float>(x)) {}
    Status act(actors::UserCall& call) override {
      std::fill_n(call.out[0].as<float>(), call.out[0].size(), x_);
      return {};
    }

   private:
    float x_;
  };
  return {{"constant", [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
             return std::unique_ptr<actors::UserActor>(std::make_unique<Constant>(info.attrs.real("x")));
           }}};
}

}  // namespace

TEST_CASE("programs that train read version s of each other's parameters in step s, in whatever order they are named") {
  double a = 0.5, b = -1.5;
  std::vector<std::pair<double, double>> losses;
  for (std::int64_t s = 0; s < game_steps; ++s) {
    const double x = a - b - 1, y = b + 2 * a;
    losses.emplace_back(x * x, y * y);
    a -= game_lr * (x > 0 ? 1 : x < 0 ? -1 : 0);  // both at once: neither sees the other's move
    b -= game_lr * (y > 0 ? 1 : y < 0 ? -1 : 0);
  }
  for (const std::string order : {"ab", "ba"})
    for (const std::vector<std::int64_t>& stages : {std::vector<std::int64_t>{1}, {1, 1}})
      for (const bool keeps : {false, true}) {
        CAPTURE(order);
        CompileOptions o;
        o.stages = stage_meshes(stages);
        o.keeps_version = keeps;
        const Plan p = compiled(two_players(order), o);
        SessionOptions session;
        session.steps = game_steps;
        session.parameters = {"a", "b"};
        const SimOutcome out = simulate_job(p, ops(), constants(), session, {.seed = 3});
        REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
        REQUIRE(std::ssize(out.run.steps) == game_steps);
        for (std::size_t s = 0; s < losses.size(); ++s) {
          const StepResult& step = out.run.steps[s];
          REQUIRE(step.others.size() == 1);
          CHECK(step.program == order.substr(0, 1));
          const double of_a = order == "ab" ? step.loss : step.others[0].loss;
          const double of_b = order == "ab" ? step.others[0].loss : step.loss;
          CHECK(of_a == doctest::Approx(losses[s].first).epsilon(1e-6));
          CHECK(of_b == doctest::Approx(losses[s].second).epsilon(1e-6));
        }
        CHECK(out.job.parameters.at("a").values[0] == doctest::Approx(a).epsilon(1e-6));
        CHECK(out.job.parameters.at("b").values[0] == doctest::Approx(b).epsilon(1e-6));
      }
}

TEST_CASE("reports of one name come by program, then by microbatch") {
  Graph g(ops());
  for (const Net& net : {large, small}) {
    add_net(g, net);
    const Value seen = g.actor("data", net.name + ".seen", {}, {{"x", {DType::f32, {2, 1}}}},
                               {{"stream", net.name}})[0];
    g.report("seen", seen);
  }
  const Plan p = compiled(g, one_place());
  SessionOptions session = session_of(2, {});
  std::vector<std::pair<std::int32_t, std::int32_t>> order;
  session.on_step = [&](const StepResult& step) {
    for (const Report& r : step.reports) order.emplace_back(r.program, r.microbatch);
  };
  for (const std::uint64_t seed : {0, 3, 9}) {
    order.clear();
    REQUIRE(simulate_job(p, ops(), actor_set(), session, {.seed = seed}).job.status.ok());
    std::vector<std::pair<std::int32_t, std::int32_t>> expected;
    for (int step = 0; step < 2; ++step)
      for (const auto& [program, microbatches] : {std::pair(0, 6), std::pair(1, 4)})
        for (std::int32_t m = 0; m < microbatches; ++m) expected.emplace_back(program, m);
    CHECK(order == expected);
  }
}

namespace {

/// A maker and a judge: each loss reads parameters that the other program trains.
Graph pair_of_networks(const std::string& order) {
  Graph g(ops());
  for (const char role : order) {
    const bool makes = role == 'm';
    const std::int64_t microbatches = makes ? 6 : 4, n = makes ? 2 : 3, width = 12, hidden = 16;
    const std::string own = makes ? "maker" : "judge";
    g.program(own, {microbatches, n});
    const auto data = [&](const std::string& name) {
      return g.actor("data", own + "." + name, {}, {{"x", {DType::f32, {n, width}}}}, {{"stream", own + name}})[0];
    };
    g.unit("body");
    const Value body = g.param("body", {hidden, width}, Init::normal(0.3f));
    Value x = g.op("relu", {g.op("linear", {data("x"), body})[0]})[0];
    g.unit("head");
    const Value head = g.param("head", {width, hidden}, Init::normal(0.3f));
    x = g.op("linear", {x, head})[0];
    const double scale = 1.0 / static_cast<double>(microbatches * n);
    kernels::AdamW hyper;
    hyper.lr = makes ? 1e-2f : 3e-3f;
    g.minimize(g.op("mse_loss", {x, data("t")}, {{"scale", scale}})[0], hyper, {makes ? body : head});
  }
  return g;
}

struct PairTold {
  std::map<std::string, std::vector<std::pair<double, double>>> steps;
  std::vector<float> body, head;
  bool operator==(const PairTold&) const = default;
};

PairTold tell_pair(const Plan& p, const SimClusterOptions& cluster = {}) {
  SessionOptions session;
  session.steps = 4;
  session.parameters = {"body", "head"};
  const SimOutcome out = simulate_job(p, ops(), actor_set(), session, cluster);
  REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
  PairTold told;
  for (const StepResult& step : out.run.steps) {
    told.steps[step.program].emplace_back(step.loss, step.grad_norm);
    told.steps[step.others.at(0).program].emplace_back(step.others[0].loss, step.others[0].grad_norm);
  }
  CHECK(told.steps.size() == 2);
  told.body = out.job.parameters.at("body").values;
  told.head = out.job.parameters.at("head").values;
  return told;
}

}  // namespace

TEST_CASE(
    "two programs that read each other's parameters have the same bits on any mesh, in any order, after any loss") {
  const PairTold one = tell_pair(compiled(pair_of_networks("mj"), one_place()));
  for (const char* name : {"maker", "judge"}) CHECK(one.steps.at(name).front() != one.steps.at(name).back());
  for (const std::string order : {"mj", "jm"})
    for (const CompileOptions& o : meshes_of_nets()) {
      if (o.stages[0].axis_size("dp") > 4) continue;
      INFO(order, ", ", to_string(o.stages[0]), ", ", o.stages.size(), " stages, ZeRO ", o.zero);
      const Plan p = compiled(pair_of_networks(order), o);
      for (const std::uint64_t seed : {0, 4}) CHECK(tell_pair(p, {.seed = seed}) == one);
      if (!o.keeps_version) continue;
      SimClusterOptions cluster;
      cluster.recovers = true;
      cluster.stall_s = 120;
      cluster.faults = {{.at_event = 40 * p.workers() + 60, .place = p.workers() - 1}};
      CHECK(tell_pair(p, cluster) == one);
    }
  CompileOptions o;
  o.stages = stage_meshes({2}, 2);
  o.seed = 7;
  CHECK(tell_pair(compiled(pair_of_networks("mj"), o)) == tell_pair(compiled(pair_of_networks("jm"), o)));
}

TEST_CASE(
    "an evaluation reads both programs' parameters, and one that no program trains; a session begins those that "
    "train") {
  const auto build = [](bool both) {
    Graph g(ops());
    for (const Net& net : both ? std::vector<Net>{small, large} : std::vector<Net>{large}) add_net(g, net);
    g.program("evaluate", {3, 3});
    g.unit("first");
    Value x = g.actor("data", "e", {}, {{"x", {DType::f32, {3, 24}}}}, {{"stream", std::string("e")}})[0];
    x = g.op("linear", {x, g.param("frozen", {24, 24}, Init::normal(0.3f))})[0];
    x = g.op("linear", {x, g.param("large.first.up", {40, 24}, Init::normal(0.3f))})[0];
    g.unit("second");
    x = g.op("linear", {x, g.param("large.second.down", {24, 40}, Init::normal(0.3f))})[0];
    const Value t = g.actor("data", "f", {}, {{"x", {DType::f32, {3, 24}}}}, {{"stream", std::string("f")}})[0];
    g.report("error", g.op("mse_loss", {x, t})[0]);
    return g;
  };
  const auto evaluations = [&](const Plan& p) {
    std::vector<std::pair<std::int64_t, double>> told;
    SessionOptions session = session_of(3, {});
    std::erase_if(session.programs, [&](const auto& of) { return p.program(of.first) < 0; });
    session.readers = [](std::int64_t) { return std::vector<std::string>{"evaluate"}; };
    session.on_closed = [&](const std::string&, std::int64_t version, const std::vector<Report>& reports) {
      double sum = 0;
      for (const Report& r : reports) sum += r.values.at(0);
      told.emplace_back(version, sum);
    };
    const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {.seed = 1});
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    return told;
  };
  const auto alone = evaluations(compiled(build(false), one_place()));
  REQUIRE(alone.size() == 4);
  CHECK(alone[0].second != alone[3].second);
  for (const std::int32_t zero : {0, 3})
    for (const std::int64_t dp : {1, 2}) {
      CompileOptions o;
      o.stages = stage_meshes({dp});
      o.zero = zero;
      o.seed = 7;
      const Plan p = compiled(build(true), o);
      CHECK(evaluations(p) == alone);
      SessionOptions session;
      session.readers = [](std::int64_t) { return std::vector<std::string>{"large"}; };
      const SimOutcome out = simulate_job(p, ops(), actor_set(), session, {});
      CHECK(out.job.status.message().find("'large', which the session begins by itself") != std::string::npos);
    }
}

TEST_CASE(
    "three void steps in a row of one program end the run by its name; void steps of two programs do not add up") {
  const Plan p = compiled(nets({large, small}), one_place());
  const auto ends = [&](const std::map<std::string, UpdateCount>& programs) {
    SessionOptions session = session_of(6, {});
    session.first_step = 5;
    session.sums = overflowing(small);
    session.sums->programs = programs;
    return simulate_job(p, ops(), actor_set(), session, {}).job.status;
  };
  CHECK(ends({{"large", {3, 2}}, {"small", {4, 1}}}).ok());
  const Status diverged = ends({{"large", {5, 0}}, {"small", {3, 2}}});
  CHECK(diverged.message().find("a gradient term of 'small.") != std::string::npos);
  CHECK(diverged.message().find("3 steps in a row are void") != std::string::npos);
}

TEST_CASE("two models train on places of their own, each as wide as it likes, with the bits that each has alone") {
  Graph g(ops());
  for (Net net : {small, large}) {
    net.units = "of_" + net.name + ".";
    add_net(g, net);
  }
  std::map<std::string, Trained> alone;
  for (const Net& net : {small, large}) alone[net.name] = train_net(compiled(nets({net}), one_place()), net, 3);
  const auto stages = [&](const std::vector<std::int32_t>& of_small, const std::vector<std::int32_t>& of_large) {
    std::vector<std::int32_t> out;
    for (const std::string& unit : g.units())
      out.push_back((unit.starts_with("of_small") ? of_small : of_large)[unit.ends_with("second") ? 1 : 0]);
    return out;
  };
  struct Case {
    std::vector<std::int64_t> dp;
    std::vector<std::int32_t> of_unit;
  };
  for (const Case& c : {Case{{3, 2}, stages({0, 0}, {1, 1})}, Case{{2, 3, 1}, stages({0, 0}, {1, 2})},
                        Case{{1, 1, 2, 2}, stages({2, 0}, {1, 3})}})
    for (const std::int32_t zero : {0, 1, 2}) {
      CompileOptions o;
      o.stages = stage_meshes(c.dp);
      o.stage_of_unit = c.of_unit;
      o.zero = zero;
      o.keeps_version = zero == 1;
      o.seed = 7;
      const Plan p = compiled(g, o);
      for (const Net& net : {small, large}) check_same(train_net(p, net, 3, {.seed = 2}), alone[net.name]);
    }
}
