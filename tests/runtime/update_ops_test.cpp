// Updates whose ops an application gives (Graph::next): optimizers of its own, averages, what they keep.
#include <doctest/doctest.h>

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "checkpoint/catalog.h"
#include "devices/files/file_storage.h"
#include "runtime/graph/optimizers.h"
#include "runtime/launch/app.h"
#include "runtime/place/local_plan.h"
#include "runtime/plan/plan_io.h"
#include "runtime/search/shapes.h"
#include "tests/runtime/compiled.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

const Shape up_shape = {40, 24}, down_shape = {24, 40};

/// The network of mlp.h, whose layers have other updates: 0 momentum, 1 AdamW and an average, 2 AdamW.
Graph mixed(const Shape_& s = {}) {
  Graph g(ops());
  const auto n = s.samples;
  g.program("train", {s.microbatches, n});
  g.unit("in");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {n, s.width}}}}, {{"stream", std::string("x")}})[0];
  std::vector<Value> ups, downs;
  for (std::int64_t l = 0; l < s.layers; ++l) {
    const std::string name = "layer" + std::to_string(l);
    g.unit(name);
    ups.push_back(g.param(name + ".up", up_shape, Init::normal(0.2f)));
    downs.push_back(g.param(name + ".down", down_shape, Init::normal(0.2f)));
    const Value h = g.op("relu", {g.op("linear", {x, ups.back()})[0]})[0];
    x = g.op("add", {x, g.op("linear", {h, downs.back()})[0]})[0];
  }
  g.unit("out");
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {n, s.width}}}}, {{"stream", std::string("t")}})[0];
  kernels::AdamW hyper;
  hyper.weight_decay = 0.1f;
  g.minimize(g.op("mse_loss", {x, t}, {{"scale", 1.0 / static_cast<double>(s.microbatches * n)}})[0], hyper);
  use_momentum(g, ups[0]);
  use_momentum(g, downs[0]);
  keep_average(g, ups[1], 0.75);
  return g;
}

const std::vector<std::string> names = {"layer0.up",  "layer0.up.momentum", "layer0.down", "layer0.down.momentum",
                                        "layer1.up",  "layer1.up.average",  "layer1.down", "layer2.up",
                                        "layer2.down"};

CompileOptions on(const std::vector<std::int64_t>& dp, std::int64_t tp, std::int32_t zero, bool keeps = false) {
  CompileOptions o;
  o.stages = stage_meshes(dp, tp);
  o.zero = zero;
  o.seed = 7;
  o.keeps_version = keeps;
  return o;
}

SessionOptions session_of(std::int64_t steps, std::vector<std::string> wanted = names) {
  SessionOptions session;
  session.steps = steps;
  session.clip = 0.5;
  session.loss_divisor = 16;
  session.lr = [](std::int64_t step) { return 1e-2 / (1 + 0.1 * static_cast<double>(step)); };
  session.parameters = std::move(wanted);
  return session;
}

SimOutcome trained(const Plan& plan, SessionOptions session = session_of(4), const SimClusterOptions& cluster = {},
                   const kernels::OpSet& registered = ops()) {
  SimOutcome out = simulate_job(plan, registered, actor_set(), std::move(session), cluster);
  REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
  return out;
}

void check_same(const SimOutcome& one, const SimOutcome& other) {
  REQUIRE(one.run.steps.size() == other.run.steps.size());
  REQUIRE(one.job.parameters.size() == other.job.parameters.size());
  for (std::size_t s = 0; s < one.run.steps.size(); ++s) {
    CHECK(one.run.steps[s].loss == other.run.steps[s].loss);
    CHECK(one.run.steps[s].grad_norm == other.run.steps[s].grad_norm);
  }
  for (const auto& [name, parameter] : one.job.parameters) {
    CAPTURE(name);
    CHECK(parameter.values == other.job.parameters.at(name).values);
  }
}

}  // namespace

TEST_CASE("ops of an update give the same bits on any dp, pp and ZeRO stage, in place and with two versions") {
  const Graph g = mixed();
  REQUIRE_MESSAGE(g.status().ok(), g.status().message());
  const SimOutcome one = trained(compiled(g, on({1}, 1, 0)));
  CHECK(one.job.parameters.at("layer0.up.momentum").values != std::vector<float>(40 * 24));
  for (const bool keeps : {false, true})
    for (const std::int32_t zero : {0, 1, 2, 3})
      for (const auto& dp : std::vector<std::vector<std::int64_t>>{{1}, {3}, {2, 1}, {1, 2, 1}}) {
        CAPTURE(keeps);
        CAPTURE(zero);
        CAPTURE(dp.size());
        check_same(one, trained(compiled(g, on(dp, 1, zero, keeps))));
      }
  const SimOutcome two = trained(compiled(g, on({1}, 2, 0)));
  for (const std::int32_t zero : {0, 1, 2, 3}) check_same(two, trained(compiled(g, on({2, 1}, 2, zero, zero == 1))));
}

TEST_CASE("what only updates read is kept as shares from ZeRO 1 on, has no moments, and survives the plan's file") {
  const Graph g = mixed();
  for (const std::int32_t zero : {0, 1, 2, 3}) {
    const Plan p = compiled(g, on({2}, 1, zero));
    const auto read = read_plan(write_plan(p));
    REQUIRE(read.ok());
    CHECK(read->params == p.params);
    CHECK(read->roles == p.roles);
    for (const PlanParam& param : p.params) {
      CAPTURE(param.name);
      const bool only_updates = param.name.ends_with(".momentum") || param.name.ends_with(".average");
      CHECK(param.by_ops == (only_updates || param.name.starts_with("layer0.")));
      CHECK(param.stored_as_share == (zero == 3 || (zero > 0 && only_updates)));
    }
  }
  // AdamW keeps two values of each element of layer1 and layer2, none of layer0, and a place has half of them.
  const auto local = local_plan(compiled(g, on({2}, 1, 1)), 0);
  REQUIRE(local.ok());
  CHECK(local->memory.optimizer == 2 * 2 * 4 * (2 * 40 * 24) / 2);
  CHECK(local->memory.parameters >= 4 * (6 * 40 * 24 + 3 * 40 * 24 / 2));
  CHECK(local->memory.parameters < 4 * (6 * 40 * 24 + 3 * 40 * 24 / 2) + 4096);
}

namespace {

/// y = x w^T against t, of data that a test computes as the actor does.
struct Regression {
  static constexpr std::int64_t rows = 2, in = 5, out = 3, microbatches = 4;
  static constexpr double scale = 1.0 / (rows * microbatches);
  std::vector<double> w = std::vector<double>(out * in);

  static std::vector<double> data(const std::string& stream, std::int64_t step, std::int64_t microbatch,
                                  std::int64_t width) {
    const auto key = philox_key(7, stream);
    std::vector<double> values;
    for (std::int64_t i = 0; i < rows * width; ++i)
      values.push_back(static_cast<double>(
          to_unit(philox(key, static_cast<std::uint64_t>(microbatch) << 32 | static_cast<std::uint64_t>(i),
                         static_cast<std::uint64_t>(step))[0]) -
          0.5f));
    return values;
  }
  /// Of scale times the sum of squares: 2 scale (x w^T - t)^T x.
  std::vector<double> gradient(std::int64_t step) const {
    std::vector<double> g(w.size());
    for (std::int64_t m = 0; m < microbatches; ++m) {
      const auto x = data("x", step, m, in), t = data("t", step, m, out);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < out; ++o) {
          double y = -t[r * out + o];
          for (std::int64_t i = 0; i < in; ++i) y += x[r * in + i] * w[o * in + i];
          for (std::int64_t i = 0; i < in; ++i) g[o * in + i] += 2 * scale * y * x[r * in + i];
        }
    }
    return g;
  }
};

/// With momentum, the mean of its weights, the last gradient, and what updates are told.
Graph regression() {
  using R = Regression;
  Graph g(ops());
  g.program("train", {R::microbatches, R::rows});
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {R::rows, R::in}}}}, {{"stream", std::string("x")}})[0];
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {R::rows, R::out}}}}, {{"stream", std::string("t")}})[0];
  const Shape shape = {R::out, R::in};
  const Value w = g.param("w", shape, Init::constant(0.25f));
  g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], t}, {{"scale", R::scale}})[0], {});
  use_momentum(g, w);
  g.next(g.param("gradient", shape, Init::constant(0)), g.gradient(w));
  g.next(g.param("before", shape, Init::constant(0)), w);
  g.next(g.param("lr", {1}, Init::constant(0)), g.learning_rate());
  g.next(g.param("number", {1}, Init::constant(0)), g.update_number());
  return g;
}

void check_near(const FinalParameter& have, const std::vector<double>& want, double epsilon = 1e-5) {
  REQUIRE(have.values.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(static_cast<double>(have.values[i]) == doctest::Approx(want[i]).epsilon(epsilon));
  }
}

}  // namespace

TEST_CASE("momentum as ops, clipped, makes in 20 steps what it makes in float64") {
  constexpr std::int64_t steps = 20;
  constexpr double clip = 0.3;
  Regression r;
  r.w.assign(r.w.size(), 0.25);
  std::vector<double> m(r.w.size()), g, before;
  int clipped = 0;
  for (std::int64_t s = 0; s < steps; ++s) {
    g = r.gradient(s);
    double norm = 0;
    for (const double x : g) norm += x * x;
    norm = std::sqrt(norm);
    clipped += norm > clip ? 1 : 0;
    before = r.w;
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] *= norm > clip ? clip / norm : 1;
      m[i] = 0.9 * m[i] + g[i];
      r.w[i] -= 0.1 / static_cast<double>(1 + s) * m[i];
    }
  }
  REQUIRE(clipped > 2);
  REQUIRE(clipped < steps - 2);
  SessionOptions session = session_of(steps, {"w", "w.momentum", "gradient", "before", "lr", "number"});
  session.clip = clip;
  session.lr = [](std::int64_t step) { return 0.1 / static_cast<double>(1 + step); };
  const Graph graph = regression();
  for (const std::int64_t dp : {1, 2})
    for (const std::int32_t zero : {0, 1, 3}) {
      const SimOutcome out = trained(compiled(graph, on({dp}, 1, zero)), session);
      check_near(out.job.parameters.at("w"), r.w);
      check_near(out.job.parameters.at("w.momentum"), m);
      check_near(out.job.parameters.at("gradient"), g);
      check_near(out.job.parameters.at("before"), before);
      CHECK(out.job.parameters.at("lr").values == std::vector<float>{static_cast<float>(0.1 / steps)});
      CHECK(out.job.parameters.at("number").values == std::vector<float>{steps});
    }
}

TEST_CASE("under tp, what an update keeps lies as what it is made of: gradients, versions, chains of them") {
  using R = Regression;
  Graph g = regression();
  const Shape shape = {R::out, R::in};
  const Value w = g.param("w", shape, Init::constant(0.25f));
  g.require(w, {Sbp::S(0), Sbp::B()});
  std::vector<Value> chain;
  for (const char* name : {"third", "second", "first"}) chain.push_back(g.param(name, shape, Init::constant(0)));
  g.next(chain[0], chain[1]);
  g.next(chain[1], chain[2]);
  g.next(chain[2], g.updated(w));
  const SessionOptions session = session_of(5, {"w", "w.momentum", "gradient", "before", "third", "second", "first"});
  const SimOutcome one = trained(compiled(g, on({1}, 1, 0)), session);
  for (const std::int64_t tp : {2, 3})
    for (const std::int32_t zero : {0, 1, 3}) {
      const Plan p = compiled(g, on({2}, tp, zero, zero == 1));
      for (const PlanParam& param : p.params) {
        CAPTURE(param.name);
        CHECK(p.tensors[param.tensor].sbp[0].is_split() == (param.name != "lr" && param.name != "number"));
        if (param.name == "number") CHECK(param.share == -1);
      }
      const SimOutcome out = trained(p, session);
      const auto value = [&](const char* name) { return out.job.parameters.at(name).values; };
      for (const auto& [name, parameter] : one.job.parameters)
        check_near(out.job.parameters.at(name), {parameter.values.begin(), parameter.values.end()});
      CHECK(value("first") == value("w"));
      CHECK(value("second") == value("before"));
    }
  Graph required = regression();
  required.require(required.param("w", shape, Init::constant(0.25f)), {Sbp::S(0), Sbp::B()});
  required.require(required.param("w.momentum", shape, Init::constant(0)), {Sbp::S(1), Sbp::B()});
  const auto refused = compile(required, on({1}, 2, 0));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message().find("no row of op 'w.update' (weighted_sum) has its arguments so") !=
        std::string::npos);
}

namespace {

/// One matrix, trained by `update` on the data of Regression, without clipping, for so many steps.
SimOutcome train_one(const std::function<void(Graph&, Value)>& update, std::int64_t steps,
                     std::vector<std::string> wanted, std::int64_t dp = 1, std::int32_t zero = 0) {
  using R = Regression;
  Graph g(ops());
  g.program("train", {R::microbatches, R::rows});
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {R::rows, R::in}}}}, {{"stream", std::string("x")}})[0];
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {R::rows, R::out}}}}, {{"stream", std::string("t")}})[0];
  const Value w = g.param("w", {R::out, R::in}, Init::constant(0.25f));
  g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], t}, {{"scale", R::scale}})[0], {});
  update(g, w);
  SessionOptions session = session_of(steps, std::move(wanted));
  session.clip = 0;
  session.lr = [](std::int64_t) { return 0.05; };
  return trained(compiled(g, on({dp}, 1, zero)), session);
}

}  // namespace

TEST_CASE("momentum of Nesterov with decay, its average, and Muon make in steps what they make in float64") {
  constexpr std::int64_t steps = 12;
  constexpr double lr = 0.05;
  Regression r;
  r.w.assign(r.w.size(), 0.25);
  std::vector<double> m(r.w.size()), mean;
  for (std::int64_t s = 0; s < steps; ++s) {
    const auto g = r.gradient(s);
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double decayed = g[i] + 0.1 * r.w[i];
      m[i] = 0.8 * m[i] + decayed;
      r.w[i] -= 2 * lr * (decayed + 0.8 * m[i]);
    }
    if (s == 0) mean = r.w;
    for (std::size_t i = 0; i < g.size(); ++i) mean[i] = 0.7 * mean[i] + 0.3 * r.w[i];
  }
  const auto nesterov = [](Graph& g, Value w) {
    keep_average(g, w, 0.7);  // before it is said what makes w
    use_momentum(g, w, {.momentum = 0.8, .weight_decay = 0.1, .nesterov = true, .lr_scale = 2});
  };
  for (const std::int32_t zero : {0, 1, 3}) {
    const SimOutcome out = train_one(nesterov, steps, {"w", "w.momentum", "w.average"}, 2, zero);
    check_near(out.job.parameters.at("w"), r.w);
    check_near(out.job.parameters.at("w.momentum"), m);
    check_near(out.job.parameters.at("w.average"), mean);
  }

  Regression muon;
  muon.w.assign(muon.w.size(), 0.25);
  std::fill(m.begin(), m.end(), 0.0);
  constexpr std::int64_t rows = Regression::out, cols = Regression::in;
  for (std::int64_t s = 0; s < steps; ++s) {
    const auto g = muon.gradient(s);
    std::vector<double> x(g.size());
    double squares = 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      m[i] = 0.95 * m[i] + 0.05 * g[i];
      x[i] = 0.95 * m[i] + 0.05 * g[i];
      squares += x[i] * x[i];
    }
    for (double& v : x) v /= std::sqrt(squares);
    for (int step = 0; step < 4; ++step) {
      const auto times_gram = [&](const std::vector<double>& y) {  // x x^T y
        std::vector<double> out(y.size());
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t k = 0; k < rows; ++k) {
            double dot = 0;
            for (std::int64_t j = 0; j < cols; ++j) dot += x[i * cols + j] * x[k * cols + j];
            for (std::int64_t j = 0; j < cols; ++j) out[i * cols + j] += dot * y[k * cols + j];
          }
        return out;
      };
      const auto third = times_gram(x), fifth = times_gram(third);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.7750 * third[i] + 2.0315 * fifth[i];
    }
    for (std::size_t i = 0; i < g.size(); ++i) muon.w[i] -= lr * (x[i] + 0.1 * muon.w[i]);
  }
  for (const std::int32_t zero : {0, 1, 2, 3}) {
    const SimOutcome out = train_one([](Graph& g, Value w) { use_muon(g, w, {.steps = 4}); }, steps,
                                     {"w", "w.momentum"}, 2, zero);
    check_near(out.job.parameters.at("w"), muon.w, 1e-4);
    check_near(out.job.parameters.at("w.momentum"), m, 1e-4);
  }
}

TEST_CASE("an evaluation reads an average, and a program that trains has updates of its own, numbered by itself") {
  Graph g(ops());
  const Shape shape = {8, 6};
  const auto data = [&](const std::string& name, std::int64_t width) {
    return g.actor("data", name, {}, {{"x", {DType::f32, {2, width}}}}, {{"stream", name.substr(0, 1)}})[0];
  };
  g.program("train", {4, 2});
  const Value w = g.param("w", shape, Init::normal(0.3f));
  const auto loss = [&](Value of, const std::string& which) {
    return g.op("mse_loss", {g.op("linear", {data("x" + which, 6), of})[0], data("t" + which, 8)}, {{"scale", 0.1}})[0];
  };
  g.minimize(loss(w, ""), {});
  use_momentum(g, w, {.momentum = 0.5});
  const Value average = keep_average(g, w, 0.5);
  g.next(g.param("train.number", {1}, Init::constant(0)), g.update_number());
  g.program("critic", {3, 2});
  const Value v = g.param("v", shape, Init::normal(0.3f));
  g.minimize(loss(v, "critic"), {});
  use_adamw(g, v);
  g.next(g.param("critic.number", {1}, Init::constant(0)), g.update_number());
  g.next(g.param("critic.lr", {1}, Init::constant(0)), g.learning_rate());
  g.program("evaluate", {2, 2});
  g.report("eval_loss", loss(average, "evaluate"));
  std::map<std::int64_t, double> first;
  const auto run = [&](const Plan& p) {
    std::map<std::int64_t, double> evaluated;
    SessionOptions session = session_of(5, {"w", "w.average", "v", "train.number", "critic.number", "critic.lr"});
    session.sums = SumState{};
    session.sums->scales["w"] = {60, 0};  // its first step is void
    session.programs["critic"] = {.clip = 0, .loss_divisor = 1, .lr = [](std::int64_t) { return 3e-3; }};
    session.readers = [](std::int64_t) { return std::vector<std::string>{"evaluate"}; };
    session.on_closed = [&](const std::string&, std::int64_t step, const std::vector<Report>& reports) {
      for (const Report& report : reports) evaluated[step] += report.values[0];
    };
    SimOutcome out = trained(p, session);
    CHECK(out.job.parameters.at("train.number").values == std::vector<float>{4});
    CHECK(out.job.parameters.at("critic.number").values == std::vector<float>{5});
    CHECK(out.job.parameters.at("critic.lr").values == std::vector<float>{3e-3f});
    if (first.empty()) first = evaluated;
    CHECK(evaluated == first);
    return out;
  };
  const SimOutcome one = run(compiled(g, on({1}, 1, 0)));
  CHECK(first.at(0) != first.at(3));
  for (const std::int32_t zero : {0, 1, 2, 3}) check_same(one, run(compiled(g, on({2}, 1, zero, zero == 2))));
}

TEST_CASE("a void step makes no next version, and is no update") {
  for (const bool keeps : {false, true})
    for (const std::int32_t zero : {0, 1, 3}) {
      const Plan p = compiled(regression(), on({2}, 1, zero, keeps));
      SessionOptions session = session_of(2, {"w", "w.momentum", "gradient", "number"});
      session.sums = SumState{};
      session.sums->scales["w"] = {60, 0};  // too fine for any gradient
      const SimOutcome first = trained(p, [&] {
        SessionOptions one = session;
        one.steps = 1;
        return one;
      }());
      REQUIRE(first.run.steps[0].void_step);
      CHECK(first.job.parameters.at("w").values == std::vector<float>(15, 0.25f));
      CHECK(first.job.parameters.at("w.momentum").values == std::vector<float>(15));
      CHECK(first.job.parameters.at("number").values == std::vector<float>{0});
      const SimOutcome both = trained(p, session);
      REQUIRE_FALSE(both.run.steps[1].void_step);
      CHECK(both.job.parameters.at("number").values == std::vector<float>{1});
      CHECK(both.job.parameters.at("gradient").values == both.job.parameters.at("w.momentum").values);
    }
}

namespace {

/// center(x) -> x less the mean of each column: rows are not apart.
kernels::OpSet with_center() {
  kernels::OpSet set = kernels::standard_ops();
  kernels::OpDef center{.name = "center", .inputs = 1, .outputs = 1};
  center.infer = [](std::span<const TensorType> in, const Attrs&) -> Expected<std::vector<TensorType>> {
    return std::vector<TensorType>(in.begin(), in.end());
  };
  center.signatures = [](std::span<const TensorType>, const Attrs&) {
    return std::vector<kernels::Signature>{{{Sbp::S(1)}, {Sbp::S(1)}}};
  };
  center.scratch_bytes = [](std::span<const TensorType> in, std::span<const TensorType>, const Attrs&) {
    return in[0].shape[1] * 4;
  };
  center.cpu = [](const kernels::Call& call) {
    const kernels::View& x = call.in[0];
    auto* mean = reinterpret_cast<float*>(call.scratch.data());
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      mean[c] = 0;
      for (std::int64_t r = 0; r < x.rows(); ++r) mean[c] += x.as<float>()[r * x.cols() + c];
      mean[c] /= static_cast<float>(x.rows());
    }
    for (std::int64_t i = 0; i < x.size(); ++i) call.out[0].as<float>()[i] = x.as<float>()[i] - mean[i % x.cols()];
  };
  REQUIRE(set.add(center).ok());
  return set;
}

}  // namespace

TEST_CASE("an op that mixes rows has its parameters whole at each dp coordinate, whatever the ZeRO stage") {
  const kernels::OpSet set = with_center();
  Graph own(set);
  own.program("train", {8, 2});
  Value x = own.actor("data", "x", {}, {{"x", {DType::f32, {2, 24}}}}, {{"stream", std::string("x")}})[0];
  const Value t = own.actor("data", "t", {}, {{"t", {DType::f32, {2, 24}}}}, {{"stream", std::string("t")}})[0];
  const Value up = own.param("up", up_shape, Init::normal(0.2f)),
              down = own.param("down", down_shape, Init::normal(0.2f));
  x = own.op("linear", {own.op("relu", {own.op("linear", {x, up})[0]})[0], down})[0];
  own.minimize(own.op("mse_loss", {x, t}, {{"scale", 1.0 / 16}})[0], {});
  const Value step = own.op("scale", {own.op("center", {own.gradient(up)})[0], own.learning_rate()})[0];
  own.next(up, own.op("weighted_sum", {up, step}, {{"b", -1.0}})[0]);
  const SessionOptions session = session_of(3, {"up", "down"});
  const SimOutcome one = trained(compiled(own, on({1}, 1, 0)), session, {}, set);
  // The columns' sums stay: each step takes a matrix whose columns add up to nothing.
  const SimOutcome none = trained(compiled(own, on({1}, 1, 0)), session_of(0, {"up", "down"}), {}, set);
  const auto &ends = one.job.parameters.at("up").values, &begins = none.job.parameters.at("up").values;
  double most = 0;
  for (std::size_t c = 0; c < 24; ++c) {
    double moved = 0;
    for (std::size_t r = 0; r < 40; ++r) {
      moved += ends[r * 24 + c] - begins[r * 24 + c];
      most = std::max<double>(most, std::abs(ends[r * 24 + c] - begins[r * 24 + c]));
    }
    CHECK(std::abs(moved) < 1e-6);
  }
  CHECK(most > 1e-4);
  for (const std::int32_t zero : {1, 2, 3}) {
    const Plan p = compiled(own, on({3}, 1, zero, zero == 2));
    for (const PlanParam& param : p.params) CHECK((param.share >= 0) == (param.name == "down"));
    check_same(one, trained(p, session, {}, set));
  }
  // Along tp the rows of "up" are divided, and columns may be.
  const auto refused = compile(own, on({1}, 2, 0));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message() ==
        "next version of 'up': along axis tp parameters lie as ops of microbatches read them ('up' as S(0)), and no "
        "row of op 'center' (center) has its arguments so, without partial sums: no boxing is inserted inside an "
        "update. Give the op such a row, or require() a layout of the parameter that it has");
}

TEST_CASE("next versions that are each other's parameters change places, in place and with two versions") {
  Graph g = regression();
  const Shape shape = {2, 3};
  const Value a = g.param("a", shape, Init::constant(1)), b = g.param("b", shape, Init::constant(2)),
              c = g.param("c", shape, Init::constant(3));
  g.next(a, b);
  g.next(b, c);
  g.next(c, a);
  for (const bool keeps : {false, true})
    for (const std::int32_t zero : {0, 1}) {
      const SimOutcome out = trained(compiled(g, on({2}, 1, zero, keeps)), session_of(4, {"a", "b", "c"}));
      CHECK(out.job.parameters.at("a").values == std::vector<float>(6, 2));
      CHECK(out.job.parameters.at("b").values == std::vector<float>(6, 3));
      CHECK(out.job.parameters.at("c").values == std::vector<float>(6, 1));
    }
}

TEST_CASE("a place is lost at any event: what updates keep goes on, bit for bit, from versions and from copies") {
  const Graph g = mixed();
  int lost = 0;
  struct Case {
    std::vector<std::int64_t> dp;
    std::int32_t zero;
    bool copies;
  };
  for (const Case& c : {Case{{2, 1}, 0, false}, Case{{3}, 1, false}, Case{{2}, 3, false}, Case{{2}, 1, true}}) {
    CompileOptions o = on(c.dp, 1, c.zero, !c.copies);
    o.keeps_copies = c.copies;
    const Plan p = compiled(g, o);
    SessionOptions session = session_of(5);
    session.copy_every = c.copies ? 2 : 0;
    const SimOutcome whole = trained(p, session);
    for (std::int64_t at = 60; at < whole.run.events; at += whole.run.events / 9) {
      SimClusterOptions cluster;
      cluster.seed = static_cast<std::uint64_t>(at);
      cluster.recovers = true;
      cluster.stall_s = 120;
      cluster.faults = {{.at_event = at, .place = static_cast<Rank>(at % p.workers())}};
      const SimOutcome one = trained(p, session, cluster);
      lost += one.run.restarts;
      check_same(whole, one);
    }
  }
  CHECK(lost > 20);
}

TEST_CASE("what updates keep is restored on another mesh: the state bit by bit, and 20 further steps") {
  char name[] = "/tmp/troupe-updates-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  const std::string folder = name;
  App app;
  app.actor<Data>("data");
  const Graph g = mixed();
  const auto plan_on = [&](std::int64_t dp, std::int64_t tp, std::int32_t zero) {
    CompileOptions o = on({dp}, tp, zero);
    o.snapshots = 1;
    return compiled(g, o);
  };
  const auto run = [&](const Plan& p, std::int64_t first, std::int64_t steps, const std::string& to) {
    JobOptions job;
    job.session = session_of(steps);
    job.session.first_step = first;
    job.checkpoint.dir = folder + "/" + to;
    if (first > 0) {
      FileStorage storage;
      const checkpoint::Catalog saved(storage, folder + "/saved");
      job.checkpoint.restore = saved.path(saved.entries()->back().folder);
    }
    SimOutcome out = app.simulate(p, job, 3);
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    return out;
  };
  const SimOutcome saved = run(plan_on(2, 1, 1), 0, 5, "saved");
  const SimOutcome straight = run(plan_on(1, 1, 0), 0, 25, "straight");
  int number = 0;
  for (const auto& [dp, tp, zero] :
       std::vector<std::array<int, 3>>{{3, 1, 0}, {3, 1, 2}, {1, 1, 0}, {1, 2, 0}, {2, 2, 3}}) {
    CAPTURE(dp);
    CAPTURE(tp);
    const Plan p = plan_on(dp, tp, zero);
    const SimOutcome none = run(p, 5, 5, "none" + std::to_string(number));
    for (const auto& [param, value] : saved.job.parameters) CHECK(none.job.parameters.at(param).values == value.values);
    const SimOutcome more = run(p, 5, 25, "more" + std::to_string(number++));
    for (const auto& [param, value] : straight.job.parameters) {
      CAPTURE(param);
      const auto& have = more.job.parameters.at(param).values;
      if (tp == 1) CHECK(have == value.values);
      double apart = 0, size = 0;
      for (std::size_t i = 0; i < have.size(); ++i) {
        apart += std::pow(static_cast<double>(have[i]) - value.values[i], 2);
        size += std::pow(static_cast<double>(value.values[i]), 2);
      }
      CHECK(std::sqrt(apart) < 1e-5 * std::sqrt(size));
    }
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("AdamW as an op of an update has the bits of AdamW, with hyperparameters of each parameter's own") {
  const auto build = [](bool as_op) {
    Graph g(ops());
    g.program("train", {8, 2});
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 24}}}}, {{"stream", std::string("x")}})[0];
    const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 24}}}}, {{"stream", std::string("t")}})[0];
    const Value up = g.param("up", up_shape, Init::normal(0.2f)),
                down = g.param("down", down_shape, Init::normal(0.2f));
    const Value y = g.op("linear", {g.op("relu", {g.op("linear", {x, up})[0]})[0], down})[0];
    kernels::AdamW hyper;
    hyper.beta2 = 0.95f;
    g.minimize(g.op("mse_loss", {y, t}, {{"scale", 1.0 / 16}})[0], hyper);
    if (as_op) use_adamw(g, up, hyper), use_adamw(g, down, hyper);
    return g;
  };
  const SessionOptions session = session_of(6, {"up", "down"});
  const SimOutcome built_in = trained(compiled(build(false), on({1}, 1, 0)), session);
  for (const std::int64_t dp : {1, 3})
    for (const std::int32_t zero : {0, 2})
      check_same(built_in, trained(compiled(build(true), on({dp}, 1, zero)), session));
}

TEST_CASE("Muon on some layers, AdamW or momentum on others: the bits of one place at any ZeRO stage") {
  for (const std::string kinds : {"maa", "ama", "aam", "mms", "sma"}) {
    Graph g(ops());
    g.program("train", {6, 2});
    g.unit("in");
    Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 8}}}}, {{"stream", std::string("x")}})[0];
    const Value t = x;
    std::vector<Value> weights;
    std::vector<std::string> wanted;
    for (const char kind : kinds) {
      wanted.push_back("w" + std::to_string(weights.size()));
      g.unit("layer" + std::to_string(weights.size()));
      weights.push_back(g.param(wanted.back(), {8, 8}, Init::normal(0.3f)));
      x = g.op("relu", {g.op("linear", {x, weights.back()})[0]})[0];
      REQUIRE(std::string("ams").find(kind) != std::string::npos);
    }
    g.unit("out");
    g.minimize(g.op("mse_loss", {x, t}, {{"scale", 0.1}})[0], {});
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (kinds[i] == 'm') use_muon(g, weights[i]);
      if (kinds[i] == 's') use_momentum(g, weights[i]);
    }
    const SimOutcome one = trained(compiled(g, on({1}, 1, 0)), session_of(3, wanted));
    for (const std::int32_t zero : {0, 1, 2, 3})
      for (const auto& dp : std::vector<std::vector<std::int64_t>>{{2}, {4}, {2, 1}}) {
        CAPTURE(kinds);
        CAPTURE(zero);
        check_same(one, trained(compiled(g, on(dp, 1, zero, zero == 2)), session_of(3, wanted)));
      }
  }
}

TEST_CASE("a place is lost for good: what updates keep is divided anew over the places that are left, bit for bit") {
  const Graph g = mixed();
  int lost = 0;
  for (const std::int32_t zero : {0, 1, 2, 3}) {
    const Plan p = compiled(g, on({3}, 1, zero, true));
    const SimOutcome whole = trained(p, session_of(5));
    for (std::int64_t at = 80; at < whole.run.events; at += whole.run.events / 5) {
      SimClusterOptions cluster;
      cluster.seed = static_cast<std::uint64_t>(at);
      cluster.recovers = true;
      cluster.stall_s = 120;
      cluster.faults = {{.at_event = at, .place = static_cast<Rank>(at % p.workers())}};
      cluster.replan = [&](const Plan&, std::int64_t places) -> Expected<ChosenPlan> {
        return same_shape(compiled(g, on({places}, 1, zero, true)));
      };
      const SimOutcome one = trained(p, session_of(5), cluster);
      lost += static_cast<int>(one.job.incidents.size());
      check_same(whole, one);
    }
  }
  CHECK(lost >= 16);
}

TEST_CASE("a target network, a mask, noise and one value for two parameters: the bits of one place on any mesh") {
  Graph g(ops());
  const Shape shape = {8, 6};
  g.program("train", {4, 2});
  const auto data = [&](const std::string& name, std::int64_t width) {
    return g.actor("data", name, {}, {{"x", {DType::f32, {2, width}}}}, {{"stream", name}})[0];
  };
  const Value w = g.param("w", shape, Init::normal(0.3f)), target = g.param("target", shape, Init::normal(0.3f));
  const Value x = data("x", 6);
  const Value y = g.op("add", {g.op("linear", {x, w})[0], g.op("linear", {x, target})[0]})[0];
  g.minimize(g.op("mse_loss", {y, data("t", 8)}, {{"scale", 0.1}})[0], {}, {w});
  g.next(target, g.op("weighted_sum", {target, g.updated(w)}, {{"a", 0.9}, {"b", 0.1}})[0]);
  // Gradients under a mask, a fifth of them left out at random.
  const Value mask = g.param("mask", shape, Init::constant(0.5f));
  const Value masked = g.op("dropout", {g.op("multiply", {g.gradient(w), mask})[0]}, {{"p", 0.2}})[0];
  g.next(w, g.op("weighted_sum", {w, masked}, {{"b", -0.1}})[0]);
  const Value first = g.param("first", shape, Init::constant(0)), second = g.param("second", shape, Init::constant(0)),
              still = g.param("still", shape, Init::constant(3));
  g.next(first, masked);
  g.next(second, masked);
  g.next(still, still);
  const std::vector<std::string> wanted = {"w", "target", "mask", "first", "second", "still"};
  const SimOutcome one = trained(compiled(g, on({1}, 1, 0)), session_of(4, wanted));
  const auto value = [&](const SimOutcome& of, const char* name) { return of.job.parameters.at(name).values; };
  CHECK(value(one, "mask") == std::vector<float>(48, 0.5f));
  CHECK(value(one, "still") == std::vector<float>(48, 3.0f));
  CHECK(value(one, "first") == value(one, "second"));
  const auto zeros_of = [](const std::vector<float>& of) {
    std::vector<bool> zeros;
    for (const float v : of) zeros.push_back(v == 0);
    return zeros;
  };
  const auto dropped = zeros_of(value(one, "first"));
  const auto count = std::count(dropped.begin(), dropped.end(), true);
  CHECK(count > 2);
  CHECK(count < 24);
  const SimOutcome before = trained(compiled(g, on({1}, 1, 0)), session_of(3, wanted));
  CHECK(zeros_of(value(before, "first")) != dropped);
  for (std::size_t i = 0; i < 48; ++i)
    CHECK(value(one, "target")[i] ==
          doctest::Approx(0.9 * value(before, "target")[i] + 0.1 * value(one, "w")[i]).epsilon(1e-6));
  for (const bool keeps : {false, true})
    for (const std::int32_t zero : {0, 1, 2, 3})
      for (const std::int64_t dp : {2, 3})
        check_same(one, trained(compiled(g, on({dp}, 1, zero, keeps)), session_of(4, wanted)));
}

TEST_CASE("a counter that updates keep is read by ops of microbatches and by an actor, on any dp and ZeRO stage") {
  class Adds final : public actors::UserActor {  // its inputs
   public:
    explicit Adds(const actors::UserActorInfo&) {}
    Status act(actors::UserCall& call) override {
      for (std::int64_t i = 0; i < call.out[0].size(); ++i)
        call.out[0].as<float>()[i] = call.in[0].as<float>()[i] + *call.in[1].as<float>();
      return {};
    }
  };
  App app;
  app.actor<Data>("data");
  app.actor<Adds>("adds");
  Graph g(app.ops());
  g.program("train", {6, 2});
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 8}}}}, {{"stream", std::string("x")}})[0];
  const Value w = g.param("w", {8, 8}, Init::normal(0.3f)), count = g.param("count", {1}, Init::constant(0));
  const Value t = g.actor("adds", "adds", {x, count}, {{"t", {DType::f32, {2, 8}}}})[0];
  x = g.op("scale", {x, count})[0];
  g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], t}, {{"scale", 0.1}})[0], {}, {w});
  use_momentum(g, w);
  g.next(count, g.update_number());
  REQUIRE_MESSAGE(g.status().ok(), g.status().message());
  const auto run = [&](std::int64_t dp, std::int32_t zero, bool keeps) {
    JobOptions job;
    job.session = session_of(4, {"w", "count"});
    SimOutcome out = app.simulate(compiled(g, on({dp}, 1, zero, keeps)), job, 1);
    REQUIRE_MESSAGE(out.job.status.ok(), out.job.status.message());
    return out;
  };
  const SimOutcome one = run(1, 0, false);
  CHECK(one.job.parameters.at("count").values == std::vector<float>{4});
  for (const std::int32_t zero : {0, 1, 2, 3})
    for (const std::int64_t dp : {2, 3}) check_same(one, run(dp, zero, zero == 2));
}
