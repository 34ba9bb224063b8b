// A whole job in one thread: the same seed gives the same run; what users do wrong ends with their actor's name.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>

#include "devices/sim/sim_storage.h"
#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"
#include "tests/runtime/seen_snapshots.h"

using namespace mlp;

namespace {

/// A user actor that doubles, until it is told to misbehave at (step, microbatch).
class Middle final : public actors::UserActor {
 public:
  explicit Middle(const actors::UserActorInfo& info)
      : how_(info.attrs.text("how")), step_(info.attrs.integer("step")), microbatch_(info.attrs.integer("microbatch")) {
  }
  Status act(actors::UserCall& call) override {
    if (call.step == step_ && call.microbatch == microbatch_) {
      if (how_ == "error") return Status(Code::io, "the tape is full");
      if (how_ == "throw") throw std::runtime_error("the tape tore");
      if (how_ == "throw int") throw 42;
    }
    for (std::int64_t i = 0; i < call.in[0].size(); ++i) call.out[0].as<float>()[i] = 2 * call.in[0].as<float>()[i];
    return {};
  }

 private:
  std::string how_;
  std::int64_t step_, microbatch_;
};

actors::UserActorSet with_middle() {
  auto set = actor_set();
  set["middle"] = [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Middle>(info));
  };
  return set;
}

/// data -> linear -> what `middle` puts there -> linear -> loss
Graph graph_around(const kernels::OpSet& ops, const std::function<Value(Graph&, Value)>& middle) {
  Graph g(ops);
  g.program("train", {4, 2});
  g.unit("in");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  g.unit("first");
  x = g.op("linear", {x, g.param("first.w", {6, 6}, Init::normal(0.3f))})[0];
  g.unit("second");
  x = middle(g, x);
  x = g.op("linear", {x, g.param("second.w", {6, 6}, Init::normal(0.3f))})[0];
  g.unit("out");
  Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 6}}}}, {{"stream", std::string("t")}})[0];
  Value loss = g.op("mse_loss", {x, t}, {{"scale", 1.0 / 8}})[0];
  g.minimize(loss, {});
  return g;
}

Graph middle_graph(const kernels::OpSet& ops, const std::string& how, std::int64_t step = 1,
                   std::int64_t microbatch = 2) {
  return graph_around(ops, [&](Graph& g, Value x) {
    return g.actor("middle", "the.middle", {x}, {{"y", {DType::f32, {2, 6}}}},
                   {{"how", how}, {"step", step}, {"microbatch", microbatch}})[0];
  });
}

Expected<SimRun> run(const Plan& p, const kernels::OpSet& ops, const actors::UserActorSet& set, std::uint64_t seed = 1,
                     std::int64_t steps = 3) {
  SessionOptions session;
  session.steps = steps;
  session.loss_divisor = 8;
  SimClusterOptions cluster;
  cluster.seed = seed;
  return run_simulated(p, ops, set, session, cluster);
}

}  // namespace

TEST_CASE("the same seed gives the same run, message for message; another seed other times and the same numbers") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.dropout = 0.1;
  const auto p = plan(ops, s, {2, 1});
  REQUIRE(p.ok());
  std::set<std::uint64_t> digests;
  std::set<std::string> hashes;
  for (std::uint64_t seed : {0, 1, 2, 3}) {
    const auto a = train(*p, ops, 4, seed, 16), b = train(*p, ops, 4, seed, 16);
    REQUIRE(a.ok());
    REQUIRE(b.ok());
    CHECK(a->run.digest == b->run.digest);
    CHECK(a->run.virtual_ns == b->run.virtual_ns);
    CHECK(a->run.params_hash == b->run.params_hash);
    digests.insert(a->run.digest);
    hashes.insert(a->run.params_hash);
  }
  CHECK(digests.size() == 4);
  CHECK(hashes.size() == 1);
  CHECK_FALSE(hashes.begin()->empty());
}

TEST_CASE("a run's digest is of every byte that places send one another, and of every act") {
  struct Teller final : actors::UserActor {
    explicit Teller(float value) : value(value) {}
    Status act(actors::UserCall& call) override {
      call.out[0].as<float>()[0] = value;
      return {};
    }
    float value;
  };
  struct Hearer final : actors::UserActor {
    Status act(actors::UserCall&) override { return {}; }
  };
  const auto digest = [](float value, const std::string& hearer) {
    actors::UserActorSet set;
    set["teller"] = [=](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
      return std::unique_ptr<actors::UserActor>(std::make_unique<Teller>(value));
    };
    set["hearer"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
      return std::unique_ptr<actors::UserActor>(std::make_unique<Hearer>());
    };
    Graph g(ops());
    g.program("main", {});
    g.unit("first");
    const Value x = g.actor("teller", "teller", {}, {{"x", {DType::f32, {1}}}})[0];
    g.unit("second");
    g.actor("hearer", hearer, {x}, {});
    const auto p = compile_over(g, {1, 1});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    const auto r = run(*p, ops(), set);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r->digest;
  };
  const auto one = digest(1, "hearer");
  CHECK(digest(1, "hearer") == one);
  CHECK(digest(2, "hearer") != one);    // no report tells of the value
  CHECK(digest(1, "listener") != one);  // no message has the name
}

TEST_CASE("another seed of the model, another learning rate or another step count changes params_hash") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  const auto p = plan(ops, s, {1});
  REQUIRE(p.ok());
  Plan other = *p;
  other.seed = 8;
  const auto a = train(*p, ops, 3, 0, 16), b = train(other, ops, 3, 0, 16), c = train(*p, ops, 4, 0, 16);
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  REQUIRE(c.ok());
  CHECK(a->run.params_hash != b->run.params_hash);
  CHECK(a->run.params_hash != c->run.params_hash);
  CHECK(a->run.steps[0].loss != b->run.steps[0].loss);
}

TEST_CASE("a user actor in the middle of a model works on any worker, bitwise alike") {
  const auto ops = kernels::standard_ops();
  std::set<std::string> hashes;
  for (const std::vector<std::int64_t>& dp :
       {std::vector<std::int64_t>{1}, {3}, {1, 1}, {2, 1}, {1, 2, 1}, {1, 1, 1, 1}}) {
    const auto p = compile_over(middle_graph(ops, "fine"), dp);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    const auto verified = verify(*p);
    CHECK_MESSAGE(verified.ok(), verified.message());
    const auto r = run(*p, ops, with_middle());
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    hashes.insert(r->params_hash);
  }
  CHECK(hashes.size() == 1);
}

TEST_CASE("a user actor that fails or throws ends the run with an error that names worker, actor and cause") {
  const auto ops = kernels::standard_ops();
  for (const std::string how : {"error", "throw", "throw int"})
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2, 2}, {1, 1, 1}})
      for (std::uint64_t seed : {0, 5}) {
        INFO(how, " on ", dp.size(), " stages, seed ", seed);
        const auto p = compile_over(middle_graph(ops, how), dp);
        REQUIRE_MESSAGE(p.ok(), p.status().message());
        const auto r = run(*p, ops, with_middle(), seed);
        REQUIRE_FALSE(r.ok());
        const auto m = r.status().message();
        CHECK_MESSAGE(m.find("the.middle") != std::string::npos, m);
        CHECK_MESSAGE(m.find("worker ") != std::string::npos, m);
        if (how == "error") CHECK(m.find("the tape is full") != std::string::npos);
        if (how == "error") CHECK(r.status().code() == Code::io);
        if (how == "throw") CHECK(m.find("the tape tore") != std::string::npos);
      }
}

TEST_CASE("an op whose body throws, also within its parallel loop, ends the run and is named with the cause") {
  // That loops over real threads pass exceptions on: tests/devices/cpu_test.cpp.
  for (const std::string how : {"throw", "throw int", "in a loop"})
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2, 2}}) {
      INFO(how, " on ", dp.size(), " stages");
      auto ops = kernels::standard_ops();
      kernels::OpDef fragile;
      fragile.name = "fragile";
      fragile.infer = [](auto in, const Attrs&) -> Expected<std::vector<kernels::TensorType>> {
        return std::vector<kernels::TensorType>{in[0]};
      };
      fragile.gradient = [](kernels::GradContext& c) -> Status {
        c.grad_in(0, c.grad_out(0));
        return {};
      };
      fragile.cpu = [how](const kernels::Call& c) {
        std::copy_n(c.in[0].as<float>(), c.in[0].size(), c.out[0].as<float>());
        if (c.step != 1) return;
        if (how == "throw") throw std::runtime_error("the glass broke");
        if (how == "throw int") throw 42;
        c.par->for_each(4, [](std::int64_t i) {
          if (i == 2) throw std::runtime_error("the glass broke");
        });
      };
      REQUIRE(ops.add(fragile).ok());
      const auto p = compile_over(
          graph_around(ops, [](Graph& g, Value x) { return g.op("fragile", {x}, {}, "the.glass")[0]; }), dp);
      REQUIRE_MESSAGE(p.ok(), p.status().message());
      const auto r = run(*p, ops, actor_set());
      REQUIRE_FALSE(r.ok());
      const auto m = r.status().message();
      CHECK_MESSAGE(m.find("op 'the.glass': ") != std::string::npos, m);
      CHECK_MESSAGE(m.find("worker ") != std::string::npos, m);
      CHECK_MESSAGE(m.find(how == "throw int" ? "no std::exception" : "the glass broke") != std::string::npos, m);
    }
}

TEST_CASE("a user actor is destroyed with its run, whether that ends well or not: its destructor may close a file") {
  const auto ops = kernels::standard_ops();
  for (const std::string how : {"fine", "error"}) {
    auto alive = std::make_shared<int>(0);
    auto set = with_middle();
    struct Counted final : actors::UserActor {
      std::shared_ptr<int> alive;
      Middle middle;
      Counted(std::shared_ptr<int> a, const actors::UserActorInfo& info) : alive(std::move(a)), middle(info) {
        ++*alive;
      }
      ~Counted() override { --*alive; }
      Status act(actors::UserCall& call) override { return middle.act(call); }
    };
    int made = 0;
    set["middle"] = [&](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
      ++made;
      return std::unique_ptr<actors::UserActor>(std::make_unique<Counted>(alive, info));
    };
    const auto p = compile_over(middle_graph(ops, how), {2, 2});
    REQUIRE(p.ok());
    CHECK(run(*p, ops, set).ok() == (how == "fine"));
    CHECK(made == 2);
    CHECK(*alive == 0);
  }
}

TEST_CASE("a user actor that cannot be made stops the job before it starts, by name") {
  const auto ops = kernels::standard_ops();
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {1, 1, 1}}) {
    const auto p = compile_over(middle_graph(ops, "fine"), dp);
    REQUIRE(p.ok());
    auto set = with_middle();
    set["middle"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
      return Status(Code::not_found, "no such file: corpus.txt");
    };
    auto r = run(*p, ops, set);
    REQUIRE_FALSE(r.ok());
    CHECK(r.status().code() == Code::not_found);
    CHECK(r.status().message().find("the.middle") != std::string::npos);
    CHECK(r.status().message().find("corpus.txt") != std::string::npos);
    set["middle"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
      throw std::runtime_error("no cheese");
    };
    std::string thrown;
    try {
      r = run(*p, ops, set);
      thrown = r.status().message();
    } catch (const std::exception& e) {
      thrown = std::string("an exception crossed the boundary: ") + e.what();
    }
    CHECK_MESSAGE(thrown.find("the.middle") != std::string::npos, thrown);
    set["middle"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> { throw 42; };
    try {
      thrown = run(*p, ops, set).status().message();
    } catch (...) {
      thrown = "an exception crossed the boundary";
    }
    CHECK_MESSAGE(thrown.find("actor 'the.middle': an exception that is no std::exception") != std::string::npos,
                  thrown);
    set.erase("middle");
    r = run(*p, ops, set);
    REQUIRE_FALSE(r.ok());
    CHECK(r.status().message().find("'middle'") != std::string::npos);
    CHECK(r.status().message().find("the.middle") != std::string::npos);
  }
}

TEST_CASE(
    "a run that diverges first finishes what reads an earlier version, which is good, as a job of processes does") {
  struct Diverging final : actors::UserActor {
    Status act(actors::UserCall& call) override {
      const float value = call.step == 1 ? std::numeric_limits<float>::infinity() : 0.5f;
      for (std::int64_t i = 0; i < call.out[0].size(); ++i) call.out[0].as<float>()[i] = value;
      return {};
    }
  };
  auto set = actor_set();
  set["diverging"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Diverging>());
  };
  Graph g(ops());
  const TensorType row{DType::f32, {1, 64}};
  const auto loss = [&](const std::string& name, const std::string& kind) {
    const Value x = g.actor(kind, name + "x", {}, {{"x", row}}, {{"stream", std::string("x")}})[0];
    const Value t = g.actor("data", name + "t", {}, {{"t", row}}, {{"stream", std::string("t")}})[0];
    return g.op("mse_loss", {g.op("linear", {x, g.param("w", {64, 64}, Init::normal(0.1f))})[0], t},
                {{"scale", 1.0}})[0];
  };
  g.program("train", {2, 1});
  g.unit("all");
  g.minimize(loss("", "diverging"), {});
  g.program("evaluate", {200, 1});  // takes longer than a step
  g.unit("all");
  g.report("eval_loss", loss("eval.", "data"));
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.snapshots = 2;
  const auto p = compile(g, o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  std::vector<std::int64_t> evaluated, saved;
  SessionOptions session;
  session.steps = 10;
  session.readers = [](std::int64_t version) {
    return version == 1 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  session.on_closed = [&](const std::string&, std::int64_t version, const std::vector<Report>& reports) {
    CHECK(reports.size() == 200);
    evaluated.push_back(version);
  };
  SeenSnapshots snapshots([](std::int64_t version) { return version == 1; });
  snapshots.on_written = [&](std::int64_t version) { saved.push_back(version); };
  const auto error = [&](std::uint64_t seed, std::int64_t stop_after) {
    evaluated.clear();
    saved.clear();
    SimStorage storage;
    REQUIRE(storage.make_dir("checkpoints").ok());
    SimClusterOptions cluster;
    cluster.seed = seed;
    cluster.storage = &storage;
    cluster.save = {"checkpoints", 1};
    cluster.stop_after = stop_after;
    cluster.snapshots = &snapshots;
    const auto r = run_simulated(*p, ops(), set, session, cluster);
    REQUIRE_FALSE(r.ok());
    return r.status().message();
  };
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    const std::string whole = error(seed, -1);
    CHECK_MESSAGE(whole.starts_with("step 1: "), whole);
    CHECK_MESSAGE(whole.ends_with("training has diverged"), whole);
    CHECK(evaluated == std::vector<std::int64_t>{1});
    CHECK(saved == std::vector<std::int64_t>{1});
    // Another failure meanwhile ends the wait, and is not what the run ends with.
    int waiting = 0;
    std::string stopped;
    for (std::int64_t message = 1; message < 100 && (message == 1 || evaluated.empty() || saved.empty()); ++message) {
      stopped = error(seed, message);
      CHECK_MESSAGE((stopped == whole || stopped == "the simulated machines stop"), stopped);
      waiting += stopped == whole;
    }
    CHECK(stopped == whole);
    CHECK(waiting > 1);
  }
}
