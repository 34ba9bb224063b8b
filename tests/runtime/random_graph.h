// Graphs drawn at random, from what a user might write, and places for them.
#pragma once

#include <algorithm>
#include <random>

#include "runtime/graph/optimizers.h"
#include "tests/runtime/mlp.h"

namespace mlp {

/// y = x / 2 + a function of (seed, step, microbatch, element): what an augmentation or a reward might do.
class Noise final : public actors::UserActor {
 public:
  explicit Noise(const actors::UserActorInfo& info) : key_(philox_key(info.seed, info.name)) {}
  Status act(actors::UserCall& call) override {
    for (std::int64_t i = 0; i < call.in[0].size(); ++i)
      call.out[0].as<float>()[i] =
          0.5f * call.in[0].as<float>()[i] +
          0.1f * to_unit(philox(key_, static_cast<std::uint64_t>(call.microbatch) << 32 | static_cast<std::uint64_t>(i),
                                static_cast<std::uint64_t>(call.step))[0]);
    return {};
  }

 private:
  std::uint64_t key_;
};

inline actors::UserActorSet actors_of_random_graphs() {
  auto set = actor_set();
  set["noise"] = [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Noise>(info));
  };
  return set;
}

struct RandomCase {
  std::vector<std::int64_t> dp;
  std::vector<std::int32_t> stage_of_unit;
  std::vector<std::vector<std::int32_t>> owners;
  Pipeline pipeline;
  std::int64_t microbatches = 1, samples = 1, eval_microbatches = 1;
  std::uint64_t network_seed = 0;
  std::string text;  // for people
};

/// Layers drawn from what a user might write. `train` false: the same forward pass without dropout, for evaluation.
class RandomGraph {
 public:
  /// `units`: declared before the first op, in this order.
  RandomGraph(const kernels::OpSet& ops, unsigned seed, std::vector<std::string> units = {})
      : ops_(ops), seed_(seed), declared_(std::move(units)) {}

  Graph graph(RandomCase& c) {
    std::mt19937 random(seed_);
    auto below = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
    c.microbatches = 1 + below(7);
    c.samples = 1 + below(3);
    c.eval_microbatches = 1 + below(5);
    width_ = 3 + below(5);
    const auto layers = 1 + below(5);
    dropout_ = below(2) ? 0.2 : 0;
    Graph g(ops_);
    c.text = "M " + std::to_string(c.microbatches) + " n " + std::to_string(c.samples) + " w " +
             std::to_string(width_) + " layers:";
    const unsigned shape = static_cast<unsigned>(random());
    g.program("train", {c.microbatches, c.samples});
    for (const auto& unit : declared_) g.unit(unit);
    Value loss = forward(g, c, layers, shape, true);
    kernels::AdamW hyper;
    hyper.weight_decay = 0.05f;
    g.minimize(loss, hyper);
    if (seed_ % 3 == 0) draw_updates(g, c);
    if (below(2)) {
      g.program("evaluate", {c.eval_microbatches, c.samples});
      std::string none;
      std::swap(none, c.text);
      g.report("eval_loss", forward(g, c, layers, shape, false));
      std::swap(none, c.text);
    }
    const auto units = static_cast<std::int64_t>(g.units().size());
    const auto stages = 1 + below(static_cast<std::uint32_t>(std::min<std::int64_t>(4, units)));
    for (std::int64_t s = 0; s < stages; ++s)
      c.dp.push_back(1 + below(static_cast<std::uint32_t>(std::min<std::int64_t>(4, c.microbatches))));
    // then passes have an order, if the schedule has one
    if (below(2)) std::fill(c.dp.begin(), c.dp.end(), c.dp[0]);
    if (below(3) == 0) c.pipeline.kind = Pipeline::Kind::zero_bubble;
    else if (below(2) && stages > 1 && 2 * stages <= units)
      c.pipeline = {Pipeline::Kind::interleaved,
                    static_cast<std::int32_t>(2 + below(static_cast<std::uint32_t>(units / stages - 1)))};
    if (below(2)) {  // random cuts
      std::vector<std::int64_t> cuts;
      for (std::int64_t u = 1; u < units; ++u) cuts.push_back(u);
      std::shuffle(cuts.begin(), cuts.end(), random);
      cuts.resize(static_cast<std::size_t>(stages * c.pipeline.chunks - 1));
      for (std::int64_t u = 0; u < units; ++u)
        c.stage_of_unit.push_back(
            static_cast<std::int32_t>(std::count_if(cuts.begin(), cuts.end(), [&](auto cut) { return cut <= u; })));
    }
    c.network_seed = 1 + random() % 1000;
    // Rounds (ZeRO 2 and 3) want microbatches in turn wherever another stage waits for them.
    if (below(2) && (seed_ % 4 < 2 || stages == 1) && !has_delay()) c.owners = random_owners(c, random);
    c.text += "; dp";
    for (auto d : c.dp) c.text += " " + std::to_string(d);
    for (const auto& stage : c.owners) {
      c.text += " owned by";
      for (auto owner : stage) c.text += " " + std::to_string(owner);
    }
    c.text += " " + to_string(c.pipeline);
    return g;
  }

  /// Any table in which each dp coordinate runs some microbatch.
  static std::vector<std::vector<std::int32_t>> random_owners(const RandomCase& c, std::mt19937& random) {
    std::vector<std::vector<std::int32_t>> out;
    for (auto width : c.dp) {
      auto& stage = out.emplace_back();
      for (std::int64_t m = 0; m < c.microbatches; ++m)
        stage.push_back(m < width ? static_cast<std::int32_t>(m) : static_cast<std::int32_t>(random() % width));
      std::shuffle(stage.begin(), stage.end(), random);
    }
    return out;
  }

 private:
  /// Some parameters get updates of ops; with draws of its own, which leave those of the graph what they are.
  void draw_updates(Graph& g, RandomCase& c) const {
    std::mt19937 random(seed_ + 1);
    c.text += " updates:";
    for (const ParamGrad& trained : g.grads()) {
      const auto kind = random() % 4;
      c.text += " " + std::to_string(kind);
      if (kind == 0) use_momentum(g, trained.param, {.weight_decay = 0.01, .nesterov = random() % 2 == 0});
      if (kind == 1) use_adamw(g, trained.param);
      if (kind == 2) keep_average(g, trained.param, 0.5);
    }
  }

  Value forward(Graph& g, RandomCase& c, std::int64_t layers, unsigned shape, bool train) {
    std::mt19937 random(shape);
    auto below = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
    const std::string prefix = train ? "" : "eval.";
    g.unit("in");
    Value x = g.actor("data", prefix + "x", {}, {{"x", {DType::f32, {c.samples, width_}}}},
                      {{"stream", std::string("x")}})[0];
    std::vector<Value> seen = {x};
    std::mt19937 of_delay(seed_ + 2);  // draws of its own, as draw_updates
    Value kept = kernels::no_value;
    if (train && has_delay()) {
      if (of_delay() % 2 == 0) g.unit("kept");
      kept = g.step_delay("kept", {DType::f32, {c.samples, width_}}, 1 + of_delay() % 3);
      x = g.op("weighted_sum", {x, kept}, {{"b", 0.5}})[0];
      seen.push_back(x);
      c.text += " kept";
    }
    std::vector<std::string> square = {"w0"};
    auto weight = [&](const std::string& name) {  // now and then an earlier one again: tied
      std::string n = below(5) == 0 ? square[static_cast<std::size_t>(below(static_cast<std::uint32_t>(square.size())))]
                                    : name;
      square.push_back(n);
      return g.param(n, {width_, width_}, Init::normal(0.3f));
    };
    for (std::int64_t l = 0; l < layers; ++l) {
      const std::string name = "l" + std::to_string(l);
      if (below(4)) g.unit(name);  // else: one more layer in the same unit
      const auto kind = below(8);
      c.text += " " + std::to_string(kind);
      switch (kind) {
        case 0: x = g.op("relu", {g.op("linear", {x, weight(name)})[0]})[0]; break;
        case 1: {  // residual, two ops deep
          Value h = g.op("relu", {g.op("linear", {x, weight(name + ".up")})[0]})[0];
          if (dropout_ > 0 && train) h = g.op("dropout", {h}, {{"p", dropout_}, {"rng", name + ".dropout"}})[0];
          x = g.op("add", {x, g.op("linear", {h, weight(name + ".down")})[0]})[0];
          break;
        }
        case 2: {  // two branches
          Value a = g.op("linear", {x, weight(name + ".a")})[0], b = g.op("linear", {x, weight(name + ".b")})[0];
          x = g.op("add", {a, g.op("relu", {b})[0]})[0];
          break;
        }
        case 3:  // a skip connection from anywhere before
          x = g.op("add", {g.op("linear", {x, weight(name)})[0],
                           seen[static_cast<std::size_t>(below(static_cast<std::uint32_t>(seen.size())))]})[0];
          break;
        case 4:
          x = g.op("bias_add",
                   {g.op("linear", {x, weight(name)})[0], g.param(name + ".bias", {width_}, Init::constant(0.1f))})[0];
          break;
        case 5:  // a user-defined actor in the middle; no gradient passes
          x = g.actor("noise", prefix + name + ".noise", {x}, {{"y", {DType::f32, {c.samples, width_}}}})[0];
          break;
        // one row per sample
        case 7: x = g.op("add", {x, g.param(name + ".shift", {c.samples, width_}, Init::normal(0.1f))})[0]; break;
        case 6:  // an actor beside the path, seen again by an op
          x = g.op("add", {g.op("linear", {x, weight(name)})[0],
                           g.actor("noise", prefix + name + ".side",
                                   {seen[static_cast<std::size_t>(below(static_cast<std::uint32_t>(seen.size())))]},
                                   {{"y", {DType::f32, {c.samples, width_}}}})[0]})[0];
          break;
      }
      if (below(5) == 0) g.report(prefix + "see." + name, x);
      seen.push_back(x);
    }
    if (kept >= 0) g.feed_back(kept, seen[of_delay() % seen.size()]);
    g.unit("out");
    x = g.op("linear", {x, g.param("head", {width_, width_}, Init::normal(0.3f))})[0];
    Value t = g.actor("data", prefix + "t", {}, {{"t", {DType::f32, {c.samples, width_}}}},
                      {{"stream", std::string("t")}})[0];
    return g.op("mse_loss", {x, t}, {{"scale", 1.0 / static_cast<double>(c.microbatches * c.samples)}})[0];
  }

  bool has_delay() const { return seed_ % 5 == 1; }

  const kernels::OpSet& ops_;
  unsigned seed_;
  std::vector<std::string> declared_;
  std::int64_t width_ = 4;
  double dropout_ = 0;
};

struct RandomOutcome {
  SimRun run;
  std::vector<double> eval;
};

/// `on`: where places compute, with bodies of `ops`; null: on the host.
inline Expected<RandomOutcome> train_case(const Plan& p, const kernels::OpSet& ops, const RandomCase& c,
                                          std::uint64_t seed, const std::shared_ptr<const Accelerator>& on = nullptr) {
  RandomOutcome out;
  SessionOptions session;
  session.steps = 3;
  session.copy_every = p.keeps_copies() ? 1 + static_cast<std::int64_t>(c.network_seed % 2) : 0;
  session.clip = 0.3;
  session.loss_divisor = static_cast<double>(c.microbatches * c.samples);
  session.lr = [](std::int64_t) { return 1e-2; };
  if (p.program("evaluate") > 0)
    session.readers = [](std::int64_t version) {
      return version != 1 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
    };
  session.on_closed = [&](const std::string&, std::int64_t step, const std::vector<Report>& reports) {
    for (const auto& r : reports) {
      out.eval.push_back(static_cast<double>(step));
      out.eval.insert(out.eval.end(), r.values.begin(), r.values.end());
    }
  };
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.accelerator = on;
  TROUPE_ASSIGN(out.run, run_simulated(p, ops, actors_of_random_graphs(), session, cluster));
  return out;
}

/// Empty if the runs have the same bits.
inline std::string difference(const RandomOutcome& a, const RandomOutcome& b) {
  if (a.run.steps.size() != b.run.steps.size()) return "another number of steps";
  for (std::size_t s = 0; s < a.run.steps.size(); ++s) {
    if (a.run.steps[s].loss != b.run.steps[s].loss) return "another loss in step " + std::to_string(s);
    if (a.run.steps[s].grad_norm != b.run.steps[s].grad_norm)
      return "another gradient norm in step " + std::to_string(s);
  }
  if (a.eval != b.eval) return "another evaluation";
  if (a.run.params_hash != b.run.params_hash) return "other parameters";
  if (!(a.run.sums == b.run.sums)) return "other exponents or peaks of sums";
  return {};
}

}  // namespace mlp
