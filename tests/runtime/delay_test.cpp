// Values that a later microbatch reads (Graph::delay), against a recurrence in plain C++.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <type_traits>

#include "runtime/place/lifetimes.h"
#include "runtime/plan/plan_io.h"
#include "runtime/session/session.h"
#include "runtime/verify/verify.h"
#include "tests/fiber_jobs.h"
#include "tests/runtime/planted.h"

using namespace mlp;
using namespace planted;

namespace {

/// Small whole numbers that name step, microbatch and element.
float number(std::int64_t step, std::int64_t microbatch, std::int64_t i) {
  return static_cast<float>((step * 5 + microbatch * 3 + i) % 11 - 4);
}

class Numbers final : public actors::UserActor {
 public:
  Status act(actors::UserCall& call) override {
    const kernels::View& out = call.out[0];
    for (std::int64_t i = 0; i < out.size(); ++i) out.as<float>()[i] = number(call.step, call.microbatch, i);
    return {};
  }
};

/// One in the first microbatch, zero later.
class Impulse final : public actors::UserActor {
 public:
  Status act(actors::UserCall& call) override {
    call.out[0].as<float>()[0] = call.microbatch == 0 ? 1.0f : 0.0f;
    return {};
  }
};

/// Reports the bytes that it is given, and adds to each.
class Count final : public actors::UserActor {
 public:
  Status act(actors::UserCall& call) override {
    const std::int64_t bytes = call.in[0].bytes();
    std::memcpy(call.out[0].data, call.in[0].data, static_cast<std::size_t>(bytes));
    for (std::int64_t i = 0; i < bytes; ++i)
      call.out[0].data[i] = static_cast<std::byte>(std::to_integer<int>(call.out[0].data[i]) + 1 + i % 3);
    call.report_bytes("seen", {call.in[0].data, static_cast<std::size_t>(bytes)});
    return {};
  }
};

actors::UserActorSet kinds() {
  auto set = actor_set();
  const auto add = [&set]<class Actor>(const std::string& name, std::type_identity<Actor>) {
    set[name] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
      return std::unique_ptr<actors::UserActor>(std::make_unique<Actor>());
    };
  };
  add("numbers", std::type_identity<Numbers>());
  add("impulse", std::type_identity<Impulse>());
  add("count", std::type_identity<Count>());
  return set;
}

constexpr std::int64_t of_a_run = 7;
const Shape row = {1, 12};

/// y(m) = x(m) + y(m - lag) / 2, which is reported; made in unit "out", and read in unit "in". `divided`: y lies in
/// parts along tp.
void add_recurrence(Graph& g, std::int64_t lag, bool divided) {
  g.program("recur", {.microbatches = of_a_run, .samples = 1, .stateful = true});
  g.unit("in");
  const Value before = g.delay("y", {DType::f32, row}, lag);
  const Value x = g.actor("numbers", "x", {}, {{"x", {DType::f32, row}}})[0];
  Value y = g.op("weighted_sum", {x, before}, {{"b", 0.5}})[0];
  g.unit("out");
  y = g.op("relu", {g.op("add", {y, y})[0]})[0];
  y = g.op("weighted_sum", {y, y}, {{"a", 0.25}, {"b", 0.25}}, "halved")[0];
  if (divided) g.require(y, {Sbp::S(1), Sbp::S(0)});
  g.report("y", y);
  g.feed_back(before, y);
}

/// What is reported in a run of step `step`.
std::vector<std::vector<double>> recurrence(std::int64_t step, std::int64_t lag) {
  std::vector<std::vector<double>> out;
  for (std::int64_t m = 0; m < of_a_run; ++m) {
    std::vector<double> y;
    for (std::int64_t i = 0; i < elements(row); ++i) {
      const double before = m < lag ? 0 : out[static_cast<std::size_t>(m - lag)][static_cast<std::size_t>(i)];
      y.push_back(std::max(0.0, number(step, m, i) + before / 2));
    }
    out.push_back(y);
  }
  return out;
}

using Reports = std::map<std::int64_t, std::vector<Report>>;  // by step

Expected<Reports> run(const Plan& plan, const kernels::OpSet& ops, std::uint64_t seed, std::int64_t steps,
                      const std::string& program, SimClusterOptions cluster = {}) {
  TROUPE_TRY(verify(plan));
  Reports out;
  SessionOptions session;
  session.steps = steps;
  session.loss_divisor = 8;
  session.readers = [&](std::int64_t) {
    return plan.trains() ? std::vector<std::string>{program} : std::vector<std::string>{};
  };
  session.on_closed = [&](const std::string&, std::int64_t step, const std::vector<Report>& reports) {
    out[step] = reports;
  };
  cluster.seed = seed;
  const kernels::OpSet there = cluster.accelerator ? cluster.accelerator->with_bodies(ops) : ops;
  TROUPE_TRY(run_simulated(plan, there, kinds(), session, cluster).status());
  return out;
}

void check_recurrence(const Expected<Reports>& got, std::int64_t lag, std::size_t runs) {
  REQUIRE_MESSAGE(got.ok(), got.status().message());
  CHECK(got->size() == runs);
  for (const auto& [step, reports] : *got) {
    const auto expected = recurrence(step, lag);
    std::vector<std::vector<double>> values(expected.size());
    for (const Report& r : reports)
      if (r.name == "y") values.at(static_cast<std::size_t>(r.microbatch)) = r.values;
    CHECK(values == expected);
  }
}

struct Where {
  std::vector<std::int64_t> dp;
  std::int64_t tp = 1;
};
const std::vector<Where> places = {{{1}}, {{1, 1}}, {{3}}, {{2, 1}}, {{1, 2}}, {{1}, 2}, {{1, 1}, 3}, {{2, 2}, 2}};

std::string text(const Where& w) { return planted::text(w.dp) + ", tp " + std::to_string(w.tp); }

}  // namespace

TEST_CASE(
    "each microbatch reads what the one `lag` before it has made, zeros at first, on any mesh and in any timing") {
  const auto ops = kernels::standard_ops();
  for (const Where& w : places)
    for (const std::int64_t lag : {1, 2, 6, 7, 100}) {
      CAPTURE(text(w));
      CAPTURE(lag);
      Graph g(ops);
      add_recurrence(g, lag, w.tp > 1);
      const auto plan = compile_over(g, w.dp, w.tp);
      REQUIRE_MESSAGE(plan.ok(), plan.status().message());
      for (const auto& role : plan->roles)
        for (const auto& c : role.channels)
          if (c.kind == PlanChannel::Kind::delayed) {
            CHECK(c.slots == std::min(lag, of_a_run) + 1);
            // No two acts of different runs are in order because of it: memory is not shared for it.
            const Lifetimes lifetimes(*plan, role);
            CHECK(lifetimes.tokens_between(c.writer, c.readers[0].actor) > 0);
          }
      for (const std::uint64_t seed : {0, 1, 2}) check_recurrence(run(*plan, ops, seed, 3, "recur"), lag, 3);
      SimClusterOptions on_device;
      on_device.accelerator = troupe::test::fibers_alone();
      check_recurrence(run(*plan, ops, 3, 3, "recur", on_device), lag, 3);
    }
}

TEST_CASE("beside training each run of a program with a delay begins with zeros, whatever the run before has left") {
  const auto ops = kernels::standard_ops();
  for (const Where& w : places)
    for (const std::int32_t zero : {0, 3}) {
      CAPTURE(text(w));
      Graph g(ops);
      g.program("train", {4, 2});
      g.unit("in");
      const auto data = [&](const std::string& name) {
        return g.actor("data", name, {}, {{name, {DType::f32, {2, 6}}}}, {{"stream", name}})[0];
      };
      const Value x = g.op("linear", {data("x"), g.param("w", {6, 6}, Init::normal(0.3f))})[0];
      g.unit("out");
      g.minimize(g.op("mse_loss", {x, data("t")}, {{"scale", 1.0 / 8}})[0], {});
      add_recurrence(g, 2, w.tp > 1);
      const auto plan = compile_over(g, w.dp, w.tp, zero);
      REQUIRE_MESSAGE(plan.ok(), plan.status().message());
      for (const std::uint64_t seed : {0, 5}) check_recurrence(run(*plan, ops, seed, 4, "recur"), 2, 5);
      if (zero > 0 || plan->workers() < 2) continue;
      CompileOptions keeps;
      keeps.stages = stage_meshes(w.dp, w.tp);
      keeps.keeps_version = true;
      const auto kept = compile(g, keeps);
      REQUIRE_MESSAGE(kept.ok(), kept.status().message());
      for (std::int64_t at = 60; at < 1500; at += 180) {
        CAPTURE(at);
        SimClusterOptions cluster;
        cluster.recovers = true;
        cluster.stall_s = 120;
        cluster.faults = {{.at_event = at, .place = static_cast<Rank>(at / 180 % kept->workers())}};
        check_recurrence(run(*kept, ops, 1, 4, "recur", cluster), 2, 5);
      }
    }
}

TEST_CASE("a delay of a delay reads two microbatches back: Fibonacci's numbers") {
  const auto ops = kernels::standard_ops();
  for (const Where& w : places) {
    CAPTURE(text(w));
    Graph g(ops);
    g.program("fibonacci", {.microbatches = 30, .samples = 1, .stateful = true});
    const kernels::TensorType one{DType::f32, {1}};
    g.unit("in");
    const Value last = g.delay("last", one), before = g.delay("before", one);
    const Value first = g.actor("impulse", "first", {}, {{"one", one}})[0];
    g.unit("out");
    const Value sum = g.op("add", {g.op("add", {last, before})[0], first})[0];
    g.feed_back(before, last);
    g.feed_back(last, sum);
    g.report("sum", sum);
    const auto plan = compile_over(g, w.dp, w.tp);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const auto got = run(*plan, ops, 3, 1, "fibonacci");
    REQUIRE_MESSAGE(got.ok(), got.status().message());
    std::vector<double> numbers(30);
    for (const Report& r : got->at(0)) numbers.at(static_cast<std::size_t>(r.microbatch)) = r.values.at(0);
    std::vector<double> expected = {1, 1};
    while (expected.size() < 30) expected.push_back(expected[expected.size() - 1] + expected[expected.size() - 2]);
    CHECK(numbers == expected);
  }
}

TEST_CASE("a delay passes on any type, bit for bit, whatever its size, one element and none included") {
  const auto ops = kernels::standard_ops();
  for (const DType dtype : {DType::u8, DType::bf16, DType::i32, DType::f32, DType::i64, DType::f64})
    for (const Shape& shape : {Shape{1, 3}, Shape{1}, Shape{1, 0}, Shape{1, 70, 31}})
      for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {1, 2}}) {
        CAPTURE(to_string(dtype));
        CAPTURE(to_string(shape));
        Graph g(ops);
        g.program("count", {.microbatches = 5, .samples = 1, .stateful = true});
        g.unit("in");
        const Value before = g.delay("bytes", {dtype, shape});
        g.unit("out");
        g.feed_back(before, g.actor("count", "count", {before}, {{"next", {dtype, shape}}})[0]);
        const auto plan = compile_over(g, dp);
        REQUIRE_MESSAGE(plan.ok(), plan.status().message());
        const auto got = run(*plan, ops, 4, 2, "count");
        REQUIRE_MESSAGE(got.ok(), got.status().message());
        CHECK(got->size() == 2);
        const std::int64_t bytes = elements(shape) * size_of(dtype);
        for (const auto& [step, reports] : *got) {
          std::int32_t seen = 0;
          for (const Report& r : reports) {
            std::vector<std::byte> expected;
            for (std::int64_t i = 0; i < bytes; ++i)
              expected.push_back(static_cast<std::byte>(r.microbatch * (1 + i % 3)));
            CHECK(r.bytes == expected);
            ++seen;
          }
          CHECK(seen == 5);
        }
      }
}

TEST_CASE(
    "the session sends nothing to a program with a delay between its Go and its end, and hears each report live") {
  const auto ops = kernels::standard_ops();
  Graph g(ops);
  add_recurrence(g, 1, false);
  const auto plan = compile_over(g, {1, 1});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  for (const auto& role : plan->roles)
    for (const auto& c : role.channels) CHECK(c.kind != PlanChannel::Kind::feed);
  std::vector<std::string> heard;
  SessionOptions session;
  session.steps = 1;
  session.on_report = [&](const std::string& program, const Report& r) {
    heard.push_back(program + "." + r.name + std::to_string(r.microbatch));
  };
  session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>&) { heard.push_back("end"); };
  REQUIRE(run_simulated(*plan, ops, kinds(), session, {}).status().ok());
  CHECK(heard == std::vector<std::string>{"recur.y0", "recur.y1", "recur.y2", "recur.y3", "recur.y4", "recur.y5",
                                          "recur.y6", "end"});
}

namespace {

/// A program drawn at random: ops that read what came before them, and delays, in several units.
struct RandomRecurrence {
  struct Made {
    std::string op;  ///< "source", "delay", "add", "half" (a / 2 - b / 4) or "relu"
    std::size_t a = 0, b = 0;
    std::int64_t lag = 0;
    std::size_t unit = 0;
  };
  std::vector<Made> values;
  std::vector<std::size_t> reported;
  std::int64_t microbatches = 1;
  std::size_t units = 1;

  explicit RandomRecurrence(std::mt19937& random) {
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    microbatches = static_cast<std::int64_t>(1 + below(20));
    units = 1 + below(5);
    values.push_back({"source", 0, 0, 0, below(units)});
    for (std::size_t d = 1 + below(4); d > 0; --d)
      values.push_back({"delay", 0, 0, static_cast<std::int64_t>(1 + below(9)), below(units)});
    for (std::size_t unit = 0; unit < units; ++unit)
      for (std::size_t n = 1 + below(4); n > 0; --n) {
        const char* ops[] = {"add", "half", "half", "relu"};
        values.push_back({ops[below(4)], below(values.size()), below(values.size()), 0, unit});
      }
    for (Made& v : values)
      if (v.op == "delay") v.a = below(values.size());  // what it is given
    for (std::size_t n = 1 + below(3); n > 0; --n) reported.push_back(below(values.size()));
  }

  Graph graph(const kernels::OpSet& ops) const {
    Graph g(ops);
    g.program("recur", {.microbatches = microbatches, .samples = 1, .stateful = true});
    for (std::size_t u = 0; u < units; ++u) g.unit("unit" + std::to_string(u));
    std::vector<Value> made;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Made& v = values[i];
      g.unit("unit" + std::to_string(v.unit));
      const std::string name = "v" + std::to_string(i);
      if (v.op == "source") made.push_back(g.actor("numbers", name, {}, {{"x", {DType::f32, row}}})[0]);
      else if (v.op == "delay") made.push_back(g.delay(name, {DType::f32, row}, v.lag));
      else if (v.op == "add") made.push_back(g.op("add", {made[v.a], made[v.b]}, {}, name)[0]);
      else if (v.op == "relu") made.push_back(g.op("relu", {made[v.a]}, {}, name)[0]);
      else made.push_back(g.op("weighted_sum", {made[v.a], made[v.b]}, {{"a", 0.5}, {"b", -0.25}}, name)[0]);
    }
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i].op == "delay") g.feed_back(made[i], made[values[i].a]);
    for (std::size_t i = 0; i < reported.size(); ++i) g.report("r" + std::to_string(i), made[reported[i]]);
    return g;
  }

  /// In f32, rounded as the ops round: products with powers of two are exact.
  std::vector<std::vector<float>> run(std::int64_t step) const {  // by value: of all microbatches
    const auto n = static_cast<std::size_t>(elements(row));
    std::vector<std::vector<float>> all(values.size());
    for (std::int64_t m = 0; m < microbatches; ++m)
      for (std::size_t i = 0; i < values.size(); ++i) {
        const Made& v = values[i];
        for (std::size_t e = 0; e < n; ++e) {
          const auto now = [&](std::size_t of) { return all[of][static_cast<std::size_t>(m) * n + e]; };
          float y = 0;
          if (v.op == "source") y = number(step, m, static_cast<std::int64_t>(e));
          else if (v.op == "delay") y = m < v.lag ? 0 : all[v.a][static_cast<std::size_t>(m - v.lag) * n + e];
          else if (v.op == "add") y = now(v.a) + now(v.b);
          else if (v.op == "relu") y = now(v.a) < 0 ? 0 : now(v.a);
          else y = 0.5f * now(v.a) - 0.25f * now(v.b);
          all[i].push_back(y);
        }
      }
    return all;
  }
};

}  // namespace

TEST_CASE("random programs with delays compute what plain loops compute, on random meshes, whatever the timing") {
  const auto ops = kernels::standard_ops();
  for (unsigned seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const RandomRecurrence r(random);
    const Graph g = r.graph(ops);
    REQUIRE_MESSAGE(g.status().ok(), g.status().message());
    std::vector<std::int64_t> dp(1 + random() % std::min<std::size_t>(4, r.units));
    for (auto& width : dp) width = 1 + random() % 3;
    const std::int64_t tp = 1 + random() % 2;
    CAPTURE(planted::text(dp));
    const auto plan = compile_over(g, dp, tp);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const auto got = run(*plan, ops, seed, 3, "recur");
    REQUIRE_MESSAGE(got.ok(), got.status().message());
    CHECK(got->size() == 3);
    for (const auto& [step, reports] : *got) {
      const auto expected = r.run(step);
      std::size_t heard = 0;
      for (const Report& report : reports) {
        const std::size_t which = static_cast<std::size_t>(std::stoi(report.name.substr(1)));
        const auto* of = expected[r.reported.at(which)].data() + report.microbatch * elements(row);
        CHECK(report.values == std::vector<double>(of, of + elements(row)));
        ++heard;
      }
      CHECK(heard == r.reported.size() * static_cast<std::size_t>(r.microbatches));
    }
  }
}

TEST_CASE("a lag may be longer than the games that verify plans play") {
  const auto ops = kernels::standard_ops();
  Graph g(ops);
  g.program("long", {.microbatches = 600, .samples = 1, .stateful = true});
  const kernels::TensorType one{DType::f32, {1}};
  const Value late = g.delay("late", one, 280);
  const Value y = g.op("add", {g.actor("impulse", "impulse", {}, {{"x", one}})[0], late})[0];
  g.feed_back(late, y);
  g.report("y", y);
  const auto plan = compile_over(g, {1});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const auto got = run(*plan, ops, 2, 1, "long");
  REQUIRE_MESSAGE(got.ok(), got.status().message());
  CHECK(got->at(0).size() == 600);
  for (const Report& r : got->at(0)) CHECK(r.values.at(0) == (r.microbatch % 280 == 0 ? 1 : 0));
}

TEST_CASE("a report is heard live once: of the place that leads, and only what the application reports") {
  Graph g(ops());
  add_recurrence(g, 1, true);
  const auto plan = compile_over(g, {1}, 2);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  int heard = 0;
  SessionOptions options;
  options.on_report = [&](const std::string&, const Report&) { ++heard; };
  Session session(*plan, options, nullptr, [](Rank, const ToWorker&) {});
  REQUIRE(session.begin().ok());
  const auto tell = [&](Rank from, Report::Kind kind) {
    REQUIRE(session.handle(from, EarlyReport{0, {kind, "y", 0, 0, {1}, {}}}).ok());
    return heard;
  };
  CHECK(tell(1, Report::Kind::value) == 0);
  CHECK(tell(0, Report::Kind::finished) == 0);
  CHECK(tell(0, Report::Kind::value) == 1);
}

TEST_CASE("a plan with a delay is the same when it has been written and read") {
  Graph g(ops());
  add_recurrence(g, 3, false);
  const auto plan = compile_over(g, {1, 1});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const auto read = read_plan(write_plan(*plan));
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(read->roles == plan->roles);
}

TEST_CASE("a delay is refused by name where no place could keep it, or what it is given is none of its kind") {
  const auto refused = [](const std::function<void(Graph&)>& build) {
    Graph g(ops());
    g.program("play", {.microbatches = 4, .samples = 1, .stateful = true});
    build(g);
    if (!g.status().ok()) return g.status().message();
    return compile_over(g, {1}).status().message();
  };
  const kernels::TensorType type{DType::f32, {1, 4}};
  const auto has = [&](const std::function<void(Graph&)>& build, const std::string& text) {
    const std::string message = refused(build);
    CHECK_MESSAGE(message.find(text) != std::string::npos, "'" << text << "' is not in: " << message);
  };
  const auto closed = [&](Graph& g, Value d) { g.feed_back(d, g.op("relu", {d})[0]); };
  has([&](Graph& g) { g.program("train", {4, 1}), g.delay("state", type); }, "delay 'state' in program 'train', which");
  has([&](Graph& g) { g.program("train", {4, 1}), g.delay("state", type); }, "no gradient passes through a delay");
  has([&](Graph& g) { g.delay("", type); }, "a delay without a name");
  has([&](Graph& g) { g.delay("state", type, 0); }, "delay 'state' has a lag of 0 microbatches: possible are 1 to");
  has([&](Graph& g) { g.delay("state", type, microbatches_max + 1); }, "has a lag of 1048577 microbatches");
  has([&](Graph& g) { g.delay("state", {DType::f32, {1, -4}}); }, "delay 'state' has the shape [1, -4]");
  has([&](Graph& g) { g.delay("state", type), g.delay("state", type); }, "delay 'state' is already in program 'play'");
  has([&](Graph& g) { g.report("y", g.op("relu", {g.delay("state", type)})[0]); },
      "delay 'state' of program 'play' has no value to give: say feed_back");
  has(
      [&](Graph& g) {
        const Value d = g.delay("state", type);
        closed(g, d), closed(g, d);
      },
      "feed_back() to delay 'state' is the second");
  has(
      [&](Graph& g) {
        g.feed_back(g.delay("state", type), g.param("w", {1, 4}, Init::constant(0)));
      },
      "feed_back() to delay 'state': 'w' is a parameter");
  has(
      [&](Graph& g) {
        const Value d = g.delay("state", type), x = g.op("relu", {d})[0];
        g.feed_back(x, d);
      },
      "which is no delay: pass what delay() or step_delay() has returned");
  has([&](Graph& g) { g.feed_back(g.delay("state", type), 77); }, "feed_back() reads value 77, which is none");
  has(
      [&](Graph& g) {
        g.feed_back(g.delay("state", {DType::f32, {1, 5}}), g.op("relu", {g.delay("x", type)})[0]);
      },
      "feed_back() to delay 'state': 'relu' is f32 [1, 4], and the delay was declared as f32 [1, 5]");
  has(
      [&](Graph& g) {
        const Value x = g.op("relu", {g.delay("x", type)})[0];
        g.program("other", {.microbatches = 4, .samples = 1, .stateful = true});
        g.feed_back(g.delay("state", type), x);
      },
      "feed_back() to delay 'state' of program 'other' reads 'relu' of program 'play'");
  has([&](Graph& g) { g.hint(g.delay("state", type), {Sbp::B(), Sbp::B()}); }, "a delay is whole at every place");
  has([&](Graph& g) { g.shared_unit("shared"), g.delay("state", type); },
      "delay 'state' is in the shared unit 'shared'");
}

TEST_CASE("a delay that is wrong in a plan is refused by the channel's name") {
  Graph g(ops());
  add_recurrence(g, 2, false);
  const auto good = compile_over(g, {1, 1});
  REQUIRE_MESSAGE(good.ok(), good.status().message());
  const auto of_kind = [](Plan& p, PlanChannel::Kind kind) -> PlanChannel& {
    for (auto& role : p.roles)
      for (auto& c : role.channels)
        if (c.kind == kind) return c;
    FAIL("no channel is of this kind");
    return p.roles[0].channels[0];
  };
  const auto planted = [&](const std::function<void(Plan&, PlanChannel&)>& fault, const std::string& message) {
    Plan p = *good;
    fault(p, of_kind(p, PlanChannel::Kind::delayed));
    check_refused(p, {message});
  };
  planted([](Plan&, PlanChannel& c) { c.lag = 0; }, "has a lag of 0 microbatches and 3 slots");
  planted([](Plan&, PlanChannel& c) { c.lag = -1; }, "has a lag of -1 microbatches");
  planted([](Plan&, PlanChannel& c) { c.slots = 2; }, "and 2 slots: expected a lag of 1 to");
  planted([](Plan&, PlanChannel& c) { c.lag = microbatches_max + 1, c.slots = 8; }, "has a lag of 1048577");
  planted([](Plan& p, PlanChannel&) { p.programs[0].spec.stateful = false; }, "which is not stateful");
  planted([](Plan&, PlanChannel& c) { c.initial = true; }, "holds a token before the first act");
  planted([&](Plan& p, PlanChannel&) { of_kind(p, PlanChannel::Kind::activation).lag = 1; }, "is no delay");
  planted([](Plan&, PlanChannel& c) { c.kind = PlanChannel::Kind::activation; },
          "has a lag of 2 microbatches and is no");
  planted(
      [](Plan& p, PlanChannel&) {
        for (auto& role : p.roles)
          for (auto& a : role.actors)
            for (auto& op : a.ops)
              if (op.op == "delay") op.op = "relu";
      },
      "late, and is not 'delay'");
}
