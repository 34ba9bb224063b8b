// User-defined actors that read parameters: each reads the whole, whatever a place keeps of it between its uses.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/place/local_plan.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/compiled.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// What actors have read of parameters: by (actor, step, microbatch).
using Seen = std::map<std::tuple<std::string, std::int64_t, std::int32_t>, std::vector<float>>;

/// Notes and reports its last input, a parameter. With an output it writes its first input times the parameter's first
/// element.
class Look final : public actors::UserActor {
 public:
  Look(std::string name, Seen& seen) : name_(std::move(name)), seen_(seen) {}
  Status act(actors::UserCall& call) override {
    const auto& param = call.in.back();
    if (param.shape != param.logical) return Status(Code::internal, "a part of a parameter");
    const auto* w = param.as<float>();
    const std::vector<float> values(w, w + param.size());
    const bool first = seen_.emplace(std::tuple(name_, call.step, call.microbatch), values).second;
    if (!first) return Status(Code::internal, "the same microbatch twice");
    call.report(name_, std::vector<double>(values.begin(), values.end()));
    for (auto& out : call.out)
      for (std::int64_t i = 0; i < out.size(); ++i) out.as<float>()[i] = w[0] * call.in[0].as<float>()[i];
    return {};
  }

 private:
  std::string name_;
  Seen& seen_;
};

actors::UserActorSet with_look(Seen& seen) {
  auto set = actor_set();
  set["look"] = [&seen](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Look>(info.name, seen));
  };
  return set;
}

const std::vector<PortType>& port() {
  static const std::vector<PortType> ports = {{"y", {DType::f32, {2, 6}}}};
  return ports;
}

Value source(Graph& g, const std::string& name) {
  return g.actor("data", name, {}, port(), {{"stream", std::string("x")}})[0];
}

/// Actors beside an op that reads the same parameter, on the way to the loss, behind the last layer; in a program with
/// ops and in one that is an actor alone. `far`: one in a unit whose ops do not read the parameter.
Graph looking(bool far) {
  Graph g(ops());
  g.program("train", {4, 2});
  g.unit("in");
  Value x = source(g, "x");
  g.unit("first");
  const Value w = g.param("first.w", {6, 6}, Init::normal(0.3f));
  x = g.op("linear", {x, w})[0];
  g.actor("look", "look.first", {w}, {});
  x = g.op("add", {x, g.actor("look", "mix.first", {x, w}, port())[0]})[0];
  g.unit("second");
  const Value v = g.param("second.w", {6, 6}, Init::normal(0.3f));
  x = g.op("linear", {x, v})[0];
  g.actor("look", "late.second", {x, v}, {});
  if (far) g.actor("look", "look.far", {w}, {});
  g.unit("out");
  g.minimize(g.op("mse_loss", {x, source(g, "t")}, {{"scale", 0.125}})[0], {});
  g.program("evaluate", {3, 2});
  g.unit("first");
  x = g.op("linear", {source(g, "eval.x"), w})[0];
  x = g.op("add", {x, g.actor("look", "eval.mix", {x, w}, port())[0]})[0];
  g.unit("out");
  g.report("eval_loss", g.op("mse_loss", {x, source(g, "eval.t")}, {{"scale", 0.125}})[0]);
  g.program("alone", {});
  g.unit("first");
  g.actor("look", "alone.first", {w}, {});
  return g;
}

Plan plan_of(const Graph& g, const std::vector<std::int64_t>& dp, std::int32_t zero) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.zero = zero;
  if (dp.size() == 2) o.stage_of_unit = {0, 0, 1, 1};
  return compiled(g, o);
}

struct Outcome {
  Seen seen;
  std::vector<std::tuple<std::string, std::int64_t, std::string, std::int32_t, std::vector<double>>> reported;
  SimRun run;
};

Outcome outcome(const Plan& p, std::uint64_t seed) {
  Outcome out;
  SessionOptions session;
  session.steps = 4;
  session.lr = [](std::int64_t) { return 1e-2; };
  session.readers = [&](std::int64_t version) {
    return p.programs.size() > 2 && version % 2 == 0 ? std::vector<std::string>{"evaluate", "alone"}
                                                     : std::vector<std::string>{};
  };
  session.on_closed = [&](const std::string& program, std::int64_t step, const std::vector<Report>& reports) {
    for (const auto& r : reports) out.reported.emplace_back(program, step, r.name, r.microbatch, r.values);
  };
  SimClusterOptions cluster;
  cluster.seed = seed;
  auto run = run_simulated(p, ops(), with_look(out.seen), session, cluster);
  REQUIRE_MESSAGE(run.ok(), run.status().message());
  out.run = *std::move(run);
  // Two programs may close in either order.
  std::sort(out.reported.begin(), out.reported.end());
  return out;
}

/// The channel of gathered parameters that an actor of this name reads, and its stage; none: -1.
std::pair<std::int32_t, const PlanChannel*> gathered_for(const Plan& p, const std::string& actor) {
  for (const auto& role : p.roles)
    for (const auto& a : role.actors)
      if (a.name == actor)
        for (auto id : a.in)
          if (role.channels[static_cast<std::size_t>(id)].kind == PlanChannel::Kind::gathered)
            return {role.stage, &role.channels[static_cast<std::size_t>(id)]};
  return {-1, nullptr};
}

}  // namespace

TEST_CASE("an actor reads a parameter whole, in every microbatch the version of the step: alike on any dp, pp, ZeRO") {
  for (const bool far : {false, true}) {
    const Graph g = looking(far);
    REQUIRE_MESSAGE(g.status().ok(), g.status().message());
    const Outcome alone = outcome(plan_of(g, {1}, 0), 0);
    // 4 steps of 4 microbatches; versions 0, 2, 4
    CHECK(alone.seen.size() == (far ? 4u : 3u) * 16 + 3 * 3 + 3);
    CHECK(alone.reported.size() == 3 * (2 * 3 + 1));
    const auto of = [&](const std::string& actor, std::int64_t step) { return alone.seen.at({actor, step, 0}); };
    CHECK(of("look.first", 0).size() == 36);
    CHECK(of("look.first", 0) != of("look.first", 1));  // it is trained
    CHECK(of("look.first", 2) == of("alone.first", 2));
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2}, {3}, {1, 1}, {2, 2}, {2, 1}})
      for (const std::int32_t zero : {0, 1, 2, 3}) {
        const Plan p = plan_of(g, dp, zero);
        for (const std::uint64_t seed : {0, 1}) {
          CAPTURE(far);
          CAPTURE(dp);
          CAPTURE(zero);
          CAPTURE(seed);
          const Outcome other = outcome(p, seed);
          CHECK(other.seen == alone.seen);
          CHECK(other.reported == alone.reported);
          CHECK(other.run.params_hash == alone.run.params_hash);
          REQUIRE(other.run.steps.size() == alone.run.steps.size());
          for (std::size_t i = 0; i < alone.run.steps.size(); ++i) {
            CHECK(other.run.steps[i].loss == alone.run.steps[i].loss);
            CHECK(other.run.steps[i].grad_norm == alone.run.steps[i].grad_norm);
          }
        }
      }
  }
}

TEST_CASE("with ZeRO 3 an actor that reads a parameter has a gather and memory of its own, which the place counts") {
  const Graph g = looking(true);
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2}, {2, 2}}) {
    CAPTURE(dp);
    const Plan p = plan_of(g, dp, 3);
    std::map<std::int32_t, std::int64_t> bytes;  // by stage
    for (const std::string actor : {"look.first", "mix.first", "late.second", "look.far", "eval.mix", "alone.first"}) {
      CAPTURE(actor);
      const auto [stage, c] = gathered_for(p, actor);
      REQUIRE(c != nullptr);
      CHECK(c->readers.size() == 1);
      CHECK(c->ring == -1);
      CHECK(c->bytes == 192);  // 36 f32 in units of 64 bytes
      const std::string unit = actor == "late.second" ? "second" : "first";
      CHECK(c->name.rfind(actor + ".gather.of." + unit, 0) == 0);
      bytes[stage] += c->bytes * c->slots;
    }
    for (const auto& [stage, least] : bytes) {
      const auto local = local_plan(p, p.meshes[static_cast<std::size_t>(stage)].ranks[0]);
      REQUIRE_MESSAGE(local.ok(), local.status().message());
      CHECK(local->memory.gathered >= least + 192);  // and what the segments read
    }
    for (const std::int32_t zero : {0, 1, 2}) CHECK(gathered_for(plan_of(g, dp, zero), "look.first").second == nullptr);
  }
}

TEST_CASE(
    "with ZeRO 3 an actor may read the first unit's parameter behind the last unit: the units between act first") {
  Graph g(ops());
  g.program("train", {4, 2});
  g.unit("l0");
  const Value first = g.param("l0.w", {6, 6}, Init::normal(0.3f));
  Value x = g.op("linear", {source(g, "x"), first})[0];
  for (int l = 1; l < 6; ++l) {
    const std::string unit = "l" + std::to_string(l);
    g.unit(unit);
    x = g.op("linear", {x, g.param(unit + ".w", {6, 6}, Init::normal(0.3f))})[0];
  }
  g.minimize(g.op("mse_loss", {x, source(g, "t")}, {{"scale", 0.125}})[0], {});
  g.unit("l0");
  g.actor("look", "behind", {x, first}, {});
  REQUIRE_MESSAGE(g.status().ok(), g.status().message());
  const Outcome alone = outcome(plan_of(g, {1}, 0), 0);
  CHECK(alone.seen.size() == 16);
  const Outcome shared = outcome(plan_of(g, {2}, 3), 1);
  CHECK(shared.seen == alone.seen);
  CHECK(shared.run.params_hash == alone.run.params_hash);
}

TEST_CASE(
    "on tp an actor reads a parameter as ops have it; where it asks for another layout the error names both ways") {
  const auto planned = [&](bool in_own_program, std::vector<std::optional<NdSbp>> in_sbp) {
    Graph g(ops());
    g.program("train", {.microbatches = 2, .samples = 4});
    g.unit("all");
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {4, 64, 512}}}})[0];
    const Value w = g.param("w", {512, 512}, Init::normal(0.1f));
    Value y = g.op("linear", {x, w}, {}, "first")[0];
    y = g.op("linear", {y, g.param("v", {512, 512}, Init::normal(0.1f))}, {}, "second")[0];
    const Value target = g.actor("data", "y", {}, {{"y", {DType::f32, {4, 64, 512}}}})[0];
    if (!in_own_program) g.actor("look", "look", {w}, {}, {}, in_sbp);
    g.minimize(g.op("mse_loss", {y, target}, {{"scale", 1.0}})[0], {});
    if (in_own_program) {
      g.program("see", {.microbatches = 1, .samples = 4});
      g.unit("all");
      g.actor("look", "look", {w}, {}, {}, in_sbp);
    }
    CompileOptions o;
    o.stages = stage_meshes({1}, 2);
    return compile(g, o);
  };
  for (const bool own : {false, true}) {
    CAPTURE(own);
    const auto whole = planned(own, {});
    const auto rows = planned(own, {NdSbp{Sbp::S(0), Sbp::B()}});
    CHECK((whole.ok() || rows.ok()));
    for (const auto* p : {&whole, &rows})
      if (!p->ok())
        CHECK_MESSAGE(p->status().message() ==
                          "'look' does not read its parameters as other ops or hints have them on axis 'tp': give the "
                          "layouts of its inputs (in_sbp)",
                      p->status().message());
  }
}
