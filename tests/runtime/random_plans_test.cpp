// Random graphs on random places: what the verifier accepts completes, bitwise like one worker alone (NU-1, NU-2).
#include <doctest/doctest.h>

#include <chrono>
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>

#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// y = x / 2 + a function of (seed, step, microbatch, element): what an augmentation or a reward might do.
class Noise final : public actors::UserActor {
 public:
  explicit Noise(const actors::UserActorInfo& info) : key_(philox_key(info.seed, info.name)) {}
  Status act(actors::UserCall& call) override {
    for (std::int64_t i = 0; i < call.in[0].size(); ++i)
      call.out[0].as<float>()[i] = 0.5f * call.in[0].as<float>()[i] +
                                   0.1f * to_unit(philox(key_, static_cast<std::uint64_t>(call.microbatch) << 32 | static_cast<std::uint64_t>(i),
                                                         static_cast<std::uint64_t>(call.step))[0]);
    return {};
  }

 private:
  std::uint64_t key_;
};

actors::UserActorSet actors_of_the_test() {
  auto set = actor_set();
  set["noise"] = [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Noise>(info));
  };
  return set;
}

struct Case {
  std::vector<std::int64_t> dp;
  std::vector<std::int32_t> stage_of_unit;
  std::vector<std::vector<std::int32_t>> owners;
  Pipeline pipeline;
  std::int64_t microbatches = 1, samples = 1, eval_microbatches = 1;
  std::uint64_t network_seed = 0;
  std::string text;                      // for people
};

/// Layers drawn from what a user might write. `train` false: the same forward pass without dropout, for evaluation.
class Builder {
 public:
  Builder(const kernels::OpSet& ops, unsigned seed) : ops_(ops), seed_(seed) {}

  Graph graph(Case& c) {
    std::mt19937 random(seed_);
    auto below = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
    c.microbatches = 1 + below(7);
    c.samples = 1 + below(3);
    c.eval_microbatches = 1 + below(5);
    width_ = 3 + below(5);
    const auto layers = 1 + below(5);
    dropout_ = below(2) ? 0.2 : 0;
    Graph g(ops_);
    c.text = "M " + std::to_string(c.microbatches) + " n " + std::to_string(c.samples) + " w " + std::to_string(width_) + " layers:";
    const unsigned shape = static_cast<unsigned>(random());
    g.program("train", {c.microbatches, c.samples});
    Value loss = forward(g, c, layers, shape, true);
    kernels::AdamW hyper;
    hyper.weight_decay = 0.05f;
    g.minimize(loss, hyper);
    if (below(2)) {
      g.program("evaluate", {c.eval_microbatches, c.samples});
      std::string none;
      std::swap(none, c.text);
      g.report("eval_loss", forward(g, c, layers, shape, false));
      std::swap(none, c.text);
    }
    const auto units = static_cast<std::int64_t>(g.units().size());
    const auto stages = 1 + below(static_cast<std::uint32_t>(std::min<std::int64_t>(4, units)));
    for (std::int64_t s = 0; s < stages; ++s) c.dp.push_back(1 + below(static_cast<std::uint32_t>(std::min<std::int64_t>(4, c.microbatches))));
    if (below(2)) std::fill(c.dp.begin(), c.dp.end(), c.dp[0]);   // then passes have an order, if the schedule has one
    if (below(3) == 0) c.pipeline.kind = Pipeline::Kind::zero_bubble;
    else if (below(2) && stages > 1 && 2 * stages <= units) c.pipeline = {Pipeline::Kind::interleaved, static_cast<std::int32_t>(2 + below(static_cast<std::uint32_t>(units / stages - 1)))};
    if (below(2)) {   // random cuts
      std::vector<std::int64_t> cuts;
      for (std::int64_t u = 1; u < units; ++u) cuts.push_back(u);
      std::shuffle(cuts.begin(), cuts.end(), random);
      cuts.resize(static_cast<std::size_t>(stages * c.pipeline.chunks - 1));
      for (std::int64_t u = 0; u < units; ++u)
        c.stage_of_unit.push_back(static_cast<std::int32_t>(std::count_if(cuts.begin(), cuts.end(), [&](auto cut) { return cut <= u; })));
    }
    c.network_seed = 1 + random() % 1000;
    // Rounds (ZeRO 2 and 3) want microbatches in turn wherever another stage waits for them.
    if (below(2) && (seed_ % 4 < 2 || stages == 1)) c.owners = random_owners(c, random);
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
  static std::vector<std::vector<std::int32_t>> random_owners(const Case& c, std::mt19937& random) {
    std::vector<std::vector<std::int32_t>> out;
    for (auto width : c.dp) {
      auto& stage = out.emplace_back();
      for (std::int64_t m = 0; m < c.microbatches; ++m) stage.push_back(m < width ? static_cast<std::int32_t>(m) : static_cast<std::int32_t>(random() % width));
      std::shuffle(stage.begin(), stage.end(), random);
    }
    return out;
  }

 private:
  Value forward(Graph& g, Case& c, std::int64_t layers, unsigned shape, bool train) {
    std::mt19937 random(shape);
    auto below = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
    const std::string prefix = train ? "" : "eval.";
    g.unit("in");
    Value x = g.actor("data", prefix + "x", {}, {{"x", {DType::f32, {c.samples, width_}}}}, {{"stream", std::string("x")}})[0];
    std::vector<Value> seen = {x};
    std::vector<std::string> square = {"w0"};
    auto weight = [&](const std::string& name) {   // now and then an earlier one again: tied
      std::string n = below(5) == 0 ? square[static_cast<std::size_t>(below(static_cast<std::uint32_t>(square.size())))] : name;
      square.push_back(n);
      return g.param(n, {width_, width_}, Init::normal(0.3f));
    };
    for (std::int64_t l = 0; l < layers; ++l) {
      const std::string name = "l" + std::to_string(l);
      if (below(4)) g.unit(name);   // else: one more layer in the same unit
      const auto kind = below(8);
      c.text += " " + std::to_string(kind);
      switch (kind) {
        case 0: x = g.op("relu", {g.op("linear", {x, weight(name)})[0]})[0]; break;
        case 1: {   // residual, two ops deep
          Value h = g.op("relu", {g.op("linear", {x, weight(name + ".up")})[0]})[0];
          if (dropout_ > 0 && train) h = g.op("dropout", {h}, {{"p", dropout_}, {"rng", name + ".dropout"}})[0];
          x = g.op("add", {x, g.op("linear", {h, weight(name + ".down")})[0]})[0];
          break;
        }
        case 2: {   // two branches
          Value a = g.op("linear", {x, weight(name + ".a")})[0], b = g.op("linear", {x, weight(name + ".b")})[0];
          x = g.op("add", {a, g.op("relu", {b})[0]})[0];
          break;
        }
        case 3:     // a skip connection from anywhere before
          x = g.op("add", {g.op("linear", {x, weight(name)})[0], seen[static_cast<std::size_t>(below(static_cast<std::uint32_t>(seen.size())))]})[0];
          break;
        case 4: x = g.op("bias_add", {g.op("linear", {x, weight(name)})[0], g.param(name + ".bias", {width_}, Init::constant(0.1f))})[0]; break;
        case 5:     // a user-defined actor in the middle; no gradient passes
          x = g.actor("noise", prefix + name + ".noise", {x}, {{"y", {DType::f32, {c.samples, width_}}}})[0];
          break;
        case 7: x = g.op("add", {x, g.param(name + ".shift", {c.samples, width_}, Init::normal(0.1f))})[0]; break;   // one row per sample
        case 6:     // an actor beside the path, seen again by an op
          x = g.op("add", {g.op("linear", {x, weight(name)})[0],
                           g.actor("noise", prefix + name + ".side", {seen[static_cast<std::size_t>(below(static_cast<std::uint32_t>(seen.size())))]},
                                   {{"y", {DType::f32, {c.samples, width_}}}})[0]})[0];
          break;
      }
      if (below(5) == 0) g.report(prefix + "see." + name, x);
      seen.push_back(x);
    }
    g.unit("out");
    x = g.op("linear", {x, g.param("head", {width_, width_}, Init::normal(0.3f))})[0];
    Value t = g.actor("data", prefix + "t", {}, {{"t", {DType::f32, {c.samples, width_}}}}, {{"stream", std::string("t")}})[0];
    return g.op("mse_loss", {x, t}, {{"scale", 1.0 / static_cast<double>(c.microbatches * c.samples)}})[0];
  }

  const kernels::OpSet& ops_;
  unsigned seed_;
  std::int64_t width_ = 4;
  double dropout_ = 0;
};

struct Outcome {
  SimRun run;
  std::vector<double> eval;
};

Expected<Outcome> train_case(const Plan& p, const kernels::OpSet& ops, const Case& c, std::uint64_t seed) {
  Outcome out;
  SessionOptions session;
  session.steps = 3;
  session.clip = 0.3;
  session.loss_divisor = static_cast<double>(c.microbatches * c.samples);
  session.lr = [](std::int64_t) { return 1e-2; };
  if (p.program("evaluate") > 0)
    session.readers = [](std::int64_t version) { return version != 1 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{}; };
  session.on_closed = [&](const std::string&, std::int64_t step, const std::vector<Report>& reports) {
    for (const auto& r : reports) {
      out.eval.push_back(static_cast<double>(step));
      out.eval.insert(out.eval.end(), r.values.begin(), r.values.end());
    }
  };
  SimClusterOptions cluster;
  cluster.seed = seed;
  TROUPE_ASSIGN(out.run, run_simulated(p, ops, actors_of_the_test(), session, cluster));
  return out;
}

/// Empty if graph number `seed` keeps the promise.
std::string try_one(const kernels::OpSet& ops, unsigned seed, int& stages_most, int& widest) {
  Case c;
  const Graph g = Builder(ops, seed).graph(c);
  const std::string which = "graph " + std::to_string(seed) + " (" + c.text + "): ";
  CompileOptions o;
  o.seed = seed;
  o.stages = stage_meshes({1});
  const auto one = compile(g, o);
  if (!one.ok()) return which + "one worker: " + one.status().message();
  if (auto v = verify(*one); !v.ok()) return which + "one worker: " + v.message();
  o.stages = stage_meshes(c.dp);
  o.stage_of_unit = c.stage_of_unit;
  o.pipeline = c.pipeline;
  o.zero = static_cast<std::int32_t>(seed % 4);
  o.owners = c.owners;
  const auto many = compile(g, o);
  if (!many.ok()) return which + many.status().message();
  if (auto v = verify(*many); !v.ok()) return which + "refused: " + v.message();
  stages_most = std::max(stages_most, many->stages);
  widest = std::max(widest, many->workers());
  const auto a = train_case(*one, ops, c, 0), b = train_case(*many, ops, c, c.network_seed);
  if (!a.ok()) return which + "accepted, but alone: " + a.status().message();
  if (!b.ok()) return which + "accepted, but: " + b.status().message();
  for (std::size_t s = 0; s < a->run.steps.size(); ++s) {
    if (b->run.steps.size() != a->run.steps.size()) return which + "another number of steps";
    if (a->run.steps[s].loss != b->run.steps[s].loss) return which + "another loss in step " + std::to_string(s);
    if (a->run.steps[s].grad_norm != b->run.steps[s].grad_norm) return which + "another gradient norm in step " + std::to_string(s);
  }
  if (a->eval != b->eval) return which + "another evaluation";
  if (a->run.params_hash != b->run.params_hash) return which + "other parameters";
  if (!(a->run.sums == b->run.sums)) return which + "other exponents or peaks of sums";
  return {};
}

}  // namespace

TEST_CASE("NU-1, NU-2: 1,500 random graphs on random places are accepted, complete, and equal one worker bitwise") {
  const auto ops = kernels::standard_ops();
  // TROUPE_RANDOM_PLANS=FIRST:COUNT explores further or repeats one.
  unsigned first = 0, count = 1500;
  if (const char* chosen = std::getenv("TROUPE_RANDOM_PLANS")) std::sscanf(chosen, "%u:%u", &first, &count);
  int faults = 0, stages = 0, workers = 0;
  for (unsigned seed = first; seed < first + count && faults < 8; ++seed) {
    const auto fault = try_one(ops, seed, stages, workers);
    CHECK_MESSAGE(fault.empty(), fault);
    faults += !fault.empty();
  }
  MESSAGE("up to " << stages << " stages and " << workers << " workers");
}

namespace {

enum Fault { deadlock, imbalance, memory, structure, faults };
const std::string fault_names[faults] = {"deadlock", "imbalance", "memory", "structure"};

/// A slot of parameters with an exponent too few, or a share of a parameter's gradient that is split along another dim than
/// before. Returns the names that may be told for it; none where there is neither.
std::vector<std::string> plant_optimizer(Plan& p, PlanRole& role, std::mt19937& random) {
  std::vector<const PlanActor*> updates;
  for (const auto& a : role.actors)
    if (a.kind == PlanActor::Kind::update && !a.params.empty()) updates.push_back(&a);
  if (!updates.empty() && random() % 2) {
    const PlanActor& a = *updates[random() % updates.size()];
    PlanTensor& exponents = p.tensors[role.channels[a.out[0]].tensors.back()];
    --exponents.shape[0];
    const std::string group = a.name.substr(0, a.name.rfind(".update"));
    return {a.name, group + ".norm", exponents.name};
  }
  std::vector<PlanTensor*> shares;
  for (const auto& c : role.channels)
    for (auto t : c.tensors)
      if (PlanTensor& g = p.tensors[t]; c.kind == PlanChannel::Kind::reduced && g.shape.size() > 1)
        shares.push_back(&g);
  if (shares.empty()) return {};
  PlanTensor& g = *shares[random() % shares.size()];
  std::vector<Sbp*> axes;
  for (std::size_t axis = 0; axis < g.sbp.size(); ++axis)
    if (p.meshes[g.mesh].axes[axis].size > 1) axes.push_back(&g.sbp[axis]);
  if (axes.empty()) return {};
  Sbp& sbp = *axes[random() % axes.size()];
  sbp = sbp == Sbp::S(1) ? Sbp::S(0) : Sbp::S(1);
  return {g.name};
}

/// Plants a fault of one kind and answers who may be named for it.
std::vector<std::string> plant(Plan& p, Fault fault, std::mt19937& random) {
  auto any = [&](const auto& list) { return static_cast<std::int32_t>(random() % list.size()); };
  PlanRole& role = p.roles[static_cast<std::size_t>(any(p.roles))];
  const auto channel = any(role.channels), actor = any(role.actors);
  PlanChannel& c = role.channels[channel];
  PlanActor& a = role.actors[actor];
  if (fault == deadlock) {
    if (random() % 4 == 0) {   // credit taken away: legal, but slow
      c.slots = 1;
      return {c.name};
    }
    if (random() % 4 == 0)
      for (auto& other : role.channels)
        if (other.initial) {   // the token that begins it all
          other.initial = false;
          return {other.name};
        }
    // An edge between any two actors of a program and rate: forward it is legal, backward it closes a cycle.
    const PlanActor from = a;
    std::vector<std::int32_t> others;
    for (std::size_t i = 0; i < role.actors.size(); ++i)
      if (role.actors[i].program == from.program && role.actors[i].rate == from.rate && from.kind != PlanActor::Kind::exchange &&
          role.actors[i].kind == PlanActor::Kind::segment && from.kind == PlanActor::Kind::segment)
        others.push_back(static_cast<std::int32_t>(i));
    if (others.empty()) {
      c.slots = 0;
      return {c.name};
    }
    const auto to = others[static_cast<std::size_t>(any(others))];
    PlanChannel edge;
    edge.name = "planted";
    edge.writer = actor;
    edge.writer_port = static_cast<std::int32_t>(role.actors[actor].out.size());
    edge.readers = {{to, static_cast<std::int32_t>(role.actors[to].in.size())}};
    edge.rate = from.rate;
    const auto id = static_cast<std::int32_t>(role.channels.size());
    role.actors[actor].out.push_back(id);
    role.actors[to].in.push_back(id);
    role.actors[actor].closes_step = false;   // now somebody waits for it
    role.channels.push_back(edge);
    return {"planted", role.actors[actor].name, role.actors[to].name};
  }
  if (fault == imbalance) {
    auto other = [](Rate r) { return r == Rate::step ? Rate::microbatch : Rate::step; };
    std::vector<std::string> names = {c.name};
    switch (random() % 3) {
      case 0: c.rate = other(c.rate); return names;
      case 1: a.rate = other(a.rate); return {a.name};
      default: a.program = (a.program + 1) % static_cast<std::int32_t>(p.programs.size()); return {a.name};
    }
  }
  if (fault == structure && random() % 3 == 0)
    if (auto names = plant_optimizer(p, role, random); !names.empty()) return names;
  std::vector<std::string> names = {c.name};
  switch (random() % 5) {
    case 0:
      if (c.readers.empty()) c.slots = -1;
      else c.readers.erase(c.readers.begin() + any(c.readers));
      return names;
    case 1: c.writer += 1; return names;
    case 2:
      if (c.offsets.empty()) c.bytes = -64;
      else c.offsets[static_cast<std::size_t>(any(c.offsets))] += c.bytes;
      return names;
    case 3: a.in.empty() ? a.out.pop_back() : a.in.pop_back(); return {a.name};
    default:
      for (auto& op : a.ops)
        for (auto& o : op.in) return o.index += 1, o.offset += a.scratch_bytes, std::vector<std::string>{a.name};
      a.closes_step = !a.closes_step;
      return {a.name};
  }
}

}  // namespace

TEST_CASE("a fault planted in a random plan is refused by the name of its culprit, or the plan still gives the same bits") {
  const auto ops = kernels::standard_ops();
  int refused[faults] = {}, ran[faults] = {};
  for (unsigned seed = 0; seed < 400; ++seed) {
    Case c;
    const Graph g = Builder(ops, seed).graph(c);
    CompileOptions o;
    o.seed = seed;
    o.stages = stage_meshes(c.dp);
    o.stage_of_unit = c.stage_of_unit;
    o.pipeline = c.pipeline;
    o.zero = static_cast<std::int32_t>(seed / 2 % 4);
    const auto good = compile(g, o);
    REQUIRE_MESSAGE(good.ok(), good.status().message());
    std::optional<Expected<Outcome>> expected;   // run only if a fault turns out to be none
    std::mt19937 random(seed);
    for (int f = 0; f < faults; ++f) {
      const auto fault = static_cast<Fault>(f);
      INFO("graph " << seed << " (" << c.text << "), " << fault_names[f]);
      Plan p = *good;
      std::vector<std::string> culprits;
      std::int64_t limit = 0;
      if (fault == memory) {
        std::int64_t most = 0;
        for (Rank r = 0; r < p.workers(); ++r) most = std::max(most, local_plan(p, r)->memory.total());
        limit = most - 1 + static_cast<std::int64_t>(random() % 4 == 0) - static_cast<std::int64_t>(random() % 2 ? random() % static_cast<std::uint64_t>(most) : 0);
        limit = std::max<std::int64_t>(limit, 1);
        culprits = {"on rank "};
        REQUIRE(verify(p, limit).ok() == (limit >= most));
      } else {
        culprits = plant(p, fault, random);
      }
      // A turn is missed by the channel whose memory it passes on, or by the exchange.
      for (std::size_t i = 0, n = culprits.size(); i < n; ++i)
        for (const std::string prefix : {"turn.", "staging."})
          if (culprits[i].rfind(prefix, 0) == 0) culprits.push_back(culprits[i].substr(prefix.size()));
      const Status v = verify(p, limit);
      if (!v.ok()) {
        ++refused[f];
        bool named = false;
        for (const auto& name : culprits) named |= v.message().find(name) != std::string::npos;
        CHECK_MESSAGE(named, "'" << culprits[0] << "' is not in: " << v.message());
        continue;
      }
      ++ran[f];
      if (!expected) expected = train_case(*good, ops, c, 0);
      REQUIRE(expected->ok());
      const auto run = train_case(p, ops, c, c.network_seed);
      REQUIRE_MESSAGE(run.ok(), "accepted, planted " << culprits[0] << ": " << run.status().message());
      CHECK(run->run.params_hash == (*expected)->run.params_hash);
      CHECK(run->eval == (*expected)->eval);
      REQUIRE(run->run.steps.size() == (*expected)->run.steps.size());
      for (std::size_t s = 0; s < run->run.steps.size(); ++s) {
        CHECK(run->run.steps[s].loss == (*expected)->run.steps[s].loss);
        CHECK(run->run.steps[s].grad_norm == (*expected)->run.steps[s].grad_norm);
      }
    }
  }
  for (int f = 0; f < faults; ++f) {
    MESSAGE(fault_names[f] << ": " << refused[f] << " refused, " << ran[f] << " ran");
    CHECK(refused[f] >= 100);
  }
  CHECK(ran[deadlock] >= 100);
}
