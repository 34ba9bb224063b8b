// Ops that keep memory of their own from microbatch to microbatch: where they run, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <limits>

#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/planted.h"

using namespace mlp;

namespace {

constexpr std::int64_t microbatches = 5;

/// y = x + all that it has seen before, by element. Its state is as large as its part of x.
kernels::OpDef tally() {
  kernels::OpDef op;
  op.name = "tally";
  op.infer = [](auto in, const Attrs&) -> Expected<std::vector<TensorType>> { return std::vector<TensorType>{in[0]}; };
  op.state_bytes = [](auto in, auto, const Attrs&) { return elements(in[0].shape) * size_of(DType::f32); };
  op.cpu = [](const kernels::Call& c) {
    auto* sum = reinterpret_cast<float*>(c.state.data());
    for (std::int64_t i = 0; i < c.in[0].size(); ++i) c.out[0].as<float>()[i] = sum[i] += c.in[0].as<float>()[i];
  };
  return op;
}

const kernels::OpSet& tally_ops() {
  static const kernels::OpSet set = [] {
    auto s = kernels::standard_ops();
    CHECK(s.add(tally()).ok());
    return s;
  }();
  return set;
}

/// Three layers with a state each. What program "count" is fed it adds up, three times over.
void add_count(Graph& g, bool stateful) {
  g.program("count", {.microbatches = microbatches, .samples = 1, .stateful = stateful});
  g.unit("in");
  Value x = g.feed("number", {DType::f32, {1, 8}});
  for (const char* unit : {"in", "middle", "out"}) {
    g.unit(unit);
    // the mean, which all elements are
    x = g.op("linear", {x, g.param(std::string("w.") + unit, {8, 8}, Init::constant(1.0f / 8))})[0];
    x = g.op("tally", {x})[0];
  }
  g.report("sum", x);
}

/// "count" beside training, which leaves its parameters alone; or by itself.
Graph graph(bool trains, bool stateful = true) {
  Graph g(tally_ops());
  if (trains) {
    g.program("train", {4, 2});
    g.unit("in");
    Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
    g.unit("middle");
    x = g.op("linear", {x, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
    g.unit("out");
    Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 6}}}}, {{"stream", std::string("t")}})[0];
    g.minimize(g.op("mse_loss", {x, t}, {{"scale", 1.0 / 8}})[0], {});
  }
  add_count(g, stateful);
  return g;
}

Plan tally_plan(const std::vector<std::int64_t>& dp, bool trains = true, std::int64_t tp = 1, std::int32_t zero = 0) {
  auto p = compile_over(graph(trains), dp, tp, zero);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const Status v = verify(*p);
  REQUIRE_MESSAGE(v.ok(), v.message());
  return *std::move(p);
}

/// What "count" reports of each microbatch, run after run; version v is fed v + 1, v + 2, ...
std::vector<std::vector<double>> counts(const Plan& p, std::int64_t runs, std::uint64_t timing) {
  std::vector<std::vector<double>> out;
  SessionOptions session;
  session.steps = p.trains() ? runs : 1;
  session.loss_divisor = 8;
  session.readers = [&](std::int64_t version) {
    return version < runs ? std::vector<std::string>{"count"} : std::vector<std::string>{};
  };
  session.feed = [](const std::string&, std::int64_t step, std::int32_t microbatch, const Report*) {
    const std::vector<float> all(8, static_cast<float>(step + microbatch + 1));
    std::vector<std::byte> payload(all.size() * sizeof(float));
    std::memcpy(payload.data(), all.data(), payload.size());
    return payload;
  };
  session.on_closed = [&](const std::string& program, std::int64_t, const std::vector<Report>& reports) {
    CHECK(program == "count");
    out.emplace_back();
    for (const auto& r : reports) out.back().push_back(r.values.at(7));
  };
  SimClusterOptions cluster;
  cluster.seed = timing;
  const auto run = run_simulated(p, tally_ops(), actor_set(), session, cluster);
  REQUIRE_MESSAGE(run.ok(), run.status().message());
  return out;
}

/// The same by hand: a layer adds up what it gets.
std::vector<std::vector<double>> expected(std::int64_t runs) {
  std::vector<std::vector<double>> out;
  double first = 0, second = 0, third = 0;
  for (std::int64_t run = 0; run < runs; ++run) {
    out.emplace_back();
    for (std::int64_t m = 0; m < microbatches; ++m)
      out.back().push_back(third += second += first += static_cast<double>(run + m + 1));
  }
  return out;
}

void check_refused(const Status& s, const std::vector<std::string>& names) {
  REQUIRE_FALSE(s.ok());
  for (const auto& name : names)
    CHECK_MESSAGE(s.message().find(name) != std::string::npos, "'" << name << "' is not in: " << s.message());
}

/// The first actor with state.
PlanActor& keeper(Plan& p) {
  for (auto& role : p.roles)
    for (auto& a : role.actors)
      if (a.op_state_bytes > 0) return a;
  FAIL("no op keeps state");
  return p.roles[0].actors[0];
}

}  // namespace

TEST_CASE(
    "state lasts from microbatch to microbatch and from run to run, zero at first: on any mesh, with ZeRO, in any "
    "timing") {
  std::uint64_t timing = 0;
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {3}, {1, 1}, {2, 3}, {4, 1, 2}})
    for (const std::int32_t zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      CAPTURE(dp.size());
      CHECK(counts(tally_plan(dp, true, 1, zero), 3, timing++) == expected(3));
    }
}

TEST_CASE("a program with state may be the only one, on any mesh, and then nothing is trained") {
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {3}, {1, 1}, {2, 3}})
    for (const std::int64_t tp : {1, 2, 3}) {
      CAPTURE(tp);
      CAPTURE(dp.size());
      const Plan p = tally_plan(dp, false, tp);
      CHECK_FALSE(p.trains());
      CHECK(local_plan(p, 0)->memory.optimizer == 0);
      CHECK(counts(p, 1, 5) == expected(1));
    }
}

TEST_CASE(
    "microbatches of a stateful program belong to dp coordinate 0 of every stage, in order; state has its memory there "
    "only") {
  for (const std::int32_t zero : {0, 2}) {
    const Plan p = tally_plan({4, 1, 2}, true, 1, zero);
    const auto count = p.program("count");
    for (std::int32_t s = 0; s < p.stages; ++s)
      for (std::int64_t d = 0; d < p.dp_width(s); ++d) {
        CHECK(p.owners_of(count, s).microbatches(d) ==
              (d == 0 ? std::vector<std::int32_t>{0, 1, 2, 3, 4} : std::vector<std::int32_t>{}));
        for (std::int32_t m = 0; m < microbatches; ++m) CHECK(p.owners_of(count, s).runs_in_round(d, m) == (d == 0));
      }
    for (Rank r = 0; r < p.workers(); ++r) {
      const auto local = local_plan(p, r);
      REQUIRE(local.ok());
      CHECK(local->memory.op_state == (local->dp_index == 0 ? aligned(8 * 4) : 0));  // one layer on each stage
      for (const auto& a : local->actors)
        CHECK(a.op_state_offset + p.roles[local->stage].actors[a.actor].op_state_bytes <= local->pool_bytes);
    }
  }
}

TEST_CASE("an op with state in a program that may run at several places is refused, and named with its program") {
  check_refused(compile_over(graph(true, false), {1}).status(),
                {"'in.tally'", "(tally)", "program 'count'", "ProgramSpec::stateful"});
  Plan p = tally_plan({2});
  p.programs[p.program("count")].spec.stateful = false;
  check_refused(verify(p), {"'" + keeper(p).name + "'", "'count' is not stateful"});
  for (auto& a : p.roles[0].actors) {  // nor when the plan does not tell
    a.op_state_bytes = 0;
    for (auto& op : a.ops) op.state_bytes = 0;
  }
  CHECK(check_structure(p).ok());
  check_refused(check_ops(p, 0, tally_ops()), {"'in.tally'", "(tally)", "'count' is not stateful"});
}

TEST_CASE("a plan without room for an op's state, or with two in one place, is refused by name") {
  const Plan good = tally_plan({1});
  Plan p = good;
  for (auto& op : keeper(p).ops)
    if (op.state_bytes > 0) --op.state_bytes;
  CHECK(verify(p).ok());  // what an op needs, only its registration says
  check_refused(check_ops(p, 0, tally_ops()),
                {"'in.tally'", "needs 32 bytes of state", "'" + keeper(p).name + "' has 31"});

  for (const std::int64_t bytes : {0, -64, 16}) {
    p = good;
    const std::string name = keeper(p).name;
    keeper(p).op_state_bytes = bytes;
    check_refused(verify(p), {"'" + name + "'", "state"});
  }
  for (const std::int64_t offset : {64, -64, 4}) {
    p = good;
    for (auto& op : keeper(p).ops)
      if (op.state_bytes > 0) op.state_offset = offset;
    check_refused(verify(p), {"'in.tally'", "no room for its state"});
  }
  p = good;
  PlanActor& a = keeper(p);
  const auto op = std::find_if(a.ops.begin(), a.ops.end(), [](const PlanOp& o) { return o.state_bytes > 0; });
  for (auto& other : a.ops)
    if (&other != &*op) other.state_bytes = 8, other.state_offset = 0;
  check_refused(verify(p), {"'in.tally'", "'in.linear'", "in the same place"});
  p = good;
  for (auto& other : keeper(p).ops)  // an op that keeps nothing keeps it nowhere
    if (other.state_bytes == 0) other.state_offset = std::numeric_limits<std::int64_t>::max() - 63;
  check_refused(verify(p), {"'in.linear'", "no room for its state"});
  p = good;
  for (auto& trained : p.roles[0].actors)
    if (trained.program == 0 && !trained.ops.empty() && trained.kind == PlanActor::Kind::segment)
      trained.ops[0].state_offset = 64;
  check_refused(verify(p), {"'train' is not stateful"});
  p = good;
  keeper(p).op_state_bytes = std::int64_t{1} << 46;
  check_refused(verify(p), {"'" + keeper(p).name + "'", "more state than any memory has"});
}

TEST_CASE("a stateful program of a million microbatches is verified by a game of some of them: it finds a deadlock") {
  for (const bool trains : {false, true}) {
    Plan p = tally_plan({1, 1}, trains);
    p.programs[p.program("count")].spec.microbatches = microbatches_max;  // a game of all takes ten seconds
    const std::clock_t begin = std::clock();
    const Status v = verify(p);
    CHECK_MESSAGE(v.ok(), v.message());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(std::clock() - begin < 2 * CLOCKS_PER_SEC);
#else
    (void)begin;
#endif
  }
  Plan p = tally_plan({1, 1}, false);
  p.programs[p.program("count")].spec.microbatches = microbatches_max;
  for (auto& c : p.roles[1].channels)
    if (c.kind == PlanChannel::Kind::parameter) c.initial = false;
  check_refused(verify(p), {"deadlock", "'count'"});
}

TEST_CASE(
    "the verifier's game of some microbatches of a stateful program says what the game of all says, wherever a feed "
    "begins to wait for reports: a deadlock that only a feed that waits has is found, and none where it never waits") {
  constexpr std::int64_t all = 300;  // more than the verifier plays, and few enough for a game of all
  Plan good = tally_plan({1}, false);
  good.programs[good.program("count")].spec.microbatches = all;
  PlanRole& role = good.roles[0];
  for (auto& c : role.channels)
    if (c.kind == PlanChannel::Kind::feed) c.after = "sum";
  // This plan has the last layer, which reports, wait until the first layer has run all microbatches: the plan ends
  // only where the feed never waits. Each channel has a slot for each microbatch.
  Plan gated = good;
  for (auto& c : gated.roles[0].channels)
    if (c.kind == PlanChannel::Kind::activation) c.slots = all;
  const auto reports = [](const PlanActor& a) { return a.reports("sum"); };
  const auto last = std::find_if(role.actors.begin(), role.actors.end(), reports) - role.actors.begin();
  const auto first = &keeper(good) - role.actors.data();
  REQUIRE(first < last);
  planted::connect(gated.roles[0], static_cast<std::int32_t>(first), static_cast<std::int32_t>(last), "all.first",
                   Rate::step);
  for (const std::int64_t at_once : {1, 100, 128, 129, 255, 256, 257, 299, 300, 1000}) {
    CAPTURE(at_once);
    for (Plan* p : {&good, &gated}) {
      for (auto& c : p->roles[0].channels) c.at_once = at_once;
      const Status some = verify(*p), whole = play(*p).status();
      INFO(some.message());
      CHECK(whole.ok() == (p == &good || at_once >= all));
      CHECK(some.ok() == whole.ok());
      if (whole.ok()) continue;
      // The feed begins to wait where it does in the game of all, or after microbatch 128 if that is earlier.
      const std::string begun = std::to_string(std::min<std::int64_t>(at_once, 128)) + " acts begun, waits for a token";
      check_refused(some, {"deadlock", begun + " on 'number'", "0 acts begun, waits for a token on 'all.first'"});
      if (at_once <= 128) CHECK(some.message() == whole.message());
    }
  }
}

TEST_CASE("a stateful program is not trained, and runs in order") {
  Graph g(tally_ops());
  g.program("train", {.microbatches = 4, .samples = 2, .stateful = true});
  g.unit("in");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  x = g.op("linear", {x, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {x, x}, {{"scale", 1.0 / 8}})[0], {});
  check_refused(g.status(), {"program 'train' is stateful"});
  Plan p = tally_plan({2});
  p.programs[0].spec.stateful = p.programs[0].spec.sequential = true;
  check_refused(verify(p), {"program 'train' is stateful"});
  p = tally_plan({2});
  p.programs[p.program("count")].spec.sequential = false;
  check_refused(verify(p), {"program 'count' is stateful, and not sequential"});
}

TEST_CASE("an op with state and a gradient is refused when it is registered") {
  kernels::OpSet set;
  auto op = tally();
  op.gradient = [](kernels::GradContext&) { return Status{}; };
  check_refused(set.add(op), {"'tally'", "state", "gradient"});
}
