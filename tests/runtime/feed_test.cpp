// Values that the session sends: prompts, commands. A feed may wait for a report of the microbatch before.
#include <doctest/doctest.h>

#include <cstring>

#include "runtime/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Answers what it was fed, plus one; says the same under a name of its own.
class Echo final : public actors::UserActor {
 public:
  Status act(actors::UserCall& call) override {
    const std::int32_t value = call.in[0].as<std::int32_t>()[0] + 1;
    call.out[0].as<std::int32_t>()[0] = value;
    call.report("aside", {static_cast<double>(value) * 1000});
    return {};
  }
};

/// A trained layer, and a program "sample" of five microbatches: prompt -> echo -> report "token".
Graph fed_graph(const kernels::OpSet& ops, const std::string& name, const std::string& after, std::int64_t at_once = 1) {
  Graph g(ops);
  g.program("train", {4, 2});
  g.unit("in");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  x = g.op("linear", {x, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
  g.unit("out");
  Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 6}}}}, {{"stream", std::string("t")}})[0];
  g.minimize(g.op("mse_loss", {x, t}, {{"scale", 1.0 / 8}})[0], {});
  g.program("sample", {5, 1});
  g.unit("in");
  Value prompt = g.feed(name, {DType::i32, {1}}, after, at_once);
  g.unit("out");
  g.report("token", g.actor("echo", "echo", {prompt}, {{"token", {DType::i32, {1}}}})[0]);
  return g;
}

struct Fed {
  std::vector<std::int32_t> asked;     // microbatches, in the order in which the session asked for them
  std::vector<double> tokens;
  Status status;
};

Fed run_fed(const Plan& p, const kernels::OpSet& ops, const std::string& feed, std::uint64_t seed, std::size_t bytes = 4) {
  auto set = actor_set();
  set["echo"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Echo>());
  };
  Fed fed;
  SessionOptions session;
  session.steps = 3;
  session.loss_divisor = 8;
  session.readers = [](std::int64_t version) { return version == 1 ? std::vector<std::string>{"sample"} : std::vector<std::string>{}; };
  session.feed = [&](const std::string& name, std::int64_t step, std::int32_t microbatch, const Report* last) {
    CHECK(name == feed);
    CHECK(step == 1);
    fed.asked.push_back(microbatch);
    const std::int32_t value = last ? static_cast<std::int32_t>(last->values.at(0)) * 2 : 10 + microbatch;
    std::vector<std::byte> payload(bytes);
    if (bytes) std::memcpy(payload.data(), &value, std::min(bytes, sizeof value));
    return payload;
  };
  session.on_closed = [&](const std::string& program, std::int64_t, const std::vector<Report>& reports) {
    CHECK(program == "sample");
    for (const auto& r : reports)
      if (r.name == "token") fed.tokens.push_back(r.values.at(0));
  };
  SimClusterOptions cluster;
  cluster.seed = seed;
  fed.status = run_simulated(p, ops, set, session, cluster).status();
  return fed;
}

const std::vector<std::vector<std::int64_t>> meshes = {{1}, {3}, {1, 1}, {2, 3}, {1, 3}};

}  // namespace

TEST_CASE("a feed that waits gets each microbatch once, made of the report it names of the one before, on any mesh") {
  const auto ops = kernels::standard_ops();
  for (const auto& dp : meshes)
    for (std::uint64_t seed : {0, 4}) {
      const auto p = compile_over(fed_graph(ops, "prompt", "token"), dp);
      REQUIRE_MESSAGE(p.ok(), p.status().message());
      const auto verified = verify(*p);
      CHECK_MESSAGE(verified.ok(), verified.message());
      const auto r = run_fed(*p, ops, "prompt", seed);   // the actor's other report starts nothing
      REQUIRE_MESSAGE(r.status.ok(), r.status.message());
      CHECK(r.asked == std::vector<std::int32_t>{0, 1, 2, 3, 4});
      CHECK(r.tokens == std::vector<double>{11, 23, 47, 95, 191});
    }
}

TEST_CASE("a feed that waits for nothing is sent whole at once, on any mesh and whatever its name") {
  const auto ops = kernels::standard_ops();
  for (const std::string name : {"prompt", "commit", "go.train"})
    for (const auto& dp : meshes) {
      const auto p = compile_over(fed_graph(ops, name, ""), dp);
      REQUIRE_MESSAGE(p.ok(), p.status().message());
      const auto r = run_fed(*p, ops, name, 4);
      REQUIRE_MESSAGE(r.status.ok(), r.status.message());
      CHECK(r.asked == std::vector<std::int32_t>{0, 1, 2, 3, 4});
      CHECK(r.tokens == std::vector<double>{11, 12, 13, 14, 15});
    }
}

TEST_CASE("of a feed that waits the first microbatches may be sent at once: later ones get the report of the one before") {
  const auto ops = kernels::standard_ops();
  const std::vector<std::vector<double>> tokens = {{11, 23, 47, 95, 191}, {11, 12, 25, 51, 103}, {11, 12, 13, 27, 55}, {11, 12, 13, 14, 29}, {11, 12, 13, 14, 15}};
  for (std::int64_t at_once = 1; at_once <= 7; ++at_once)
    for (const auto& dp : meshes)
      for (std::uint64_t seed : {0, 4}) {
        CAPTURE(at_once);
        const auto p = compile_over(fed_graph(ops, "prompt", "token", at_once), dp);
        REQUIRE_MESSAGE(p.ok(), p.status().message());
        const auto r = run_fed(*p, ops, "prompt", seed);
        REQUIRE_MESSAGE(r.status.ok(), r.status.message());
        CHECK(r.asked == std::vector<std::int32_t>{0, 1, 2, 3, 4});
        CHECK(r.tokens == tokens[static_cast<std::size_t>(std::min<std::int64_t>(at_once, 5) - 1)]);
      }
  CHECK(fed_graph(ops, "prompt", "token", 0).status().message().find("feed 'prompt': at_once is 0") != std::string::npos);
  auto p = compile_over(fed_graph(ops, "prompt", "token", 2), {1});
  REQUIRE(p.ok());
  for (auto& c : p->roles[0].channels)
    if (c.kind == PlanChannel::Kind::feed) c.at_once = 0;
  CHECK_MESSAGE(verify(*p).message().find("channel 'prompt' feeds 0 microbatches at once") != std::string::npos, verify(*p).message());
}

TEST_CASE("a feed of the wrong size is an error that names the feed and both sizes") {
  const auto ops = kernels::standard_ops();
  const auto p = compile_over(fed_graph(ops, "prompt", "token"), {1, 1});
  REQUIRE(p.ok());
  for (std::size_t bytes : {0, 3, 100000}) {
    const auto r = run_fed(*p, ops, "prompt", 0, bytes);
    REQUIRE_FALSE(r.status.ok());
    CHECK_MESSAGE(r.status.message().find("prompt") != std::string::npos, r.status.message());
    CHECK(r.status.message().find(std::to_string(bytes)) != std::string::npos);
  }
}

TEST_CASE("a feed that nobody reads and two feeds of one name are refused by name") {
  const auto ops = kernels::standard_ops();
  Graph unread = fed_graph(ops, "prompt", "token");
  unread.feed("position", {DType::i32, {1}}, "token");
  const auto p = compile_over(unread, {1});
  REQUIRE_FALSE(p.ok());
  CHECK_MESSAGE(p.status().message().find("'position' of program 'sample' has no reader") != std::string::npos, p.status().message());
  Graph twice = fed_graph(ops, "prompt", "token");
  twice.feed("prompt", {DType::i32, {1}});
  CHECK_MESSAGE(twice.status().message().find("feed 'prompt' is already in program 'sample'") != std::string::npos, twice.status().message());
}

TEST_CASE("a feed that waits for a report that never comes: the session says which, of which microbatch") {
  const auto ops = kernels::standard_ops();
  const auto p = compile_over(fed_graph(ops, "prompt", "answer"), {1});
  REQUIRE(p.ok());
  const auto r = run_fed(*p, ops, "prompt", 0);
  REQUIRE_FALSE(r.status.ok());
  CHECK_MESSAGE(r.status.message().find("feed 'prompt' waits for report 'answer' of microbatch 0") != std::string::npos, r.status.message());
}

namespace {

/// The same plan, the channels of its first stage at higher or lower addresses than those of its second.
Plan with_channels(Plan p, bool first_is_higher) {
  const auto most = std::max(p.roles[0].channels.size(), p.roles[1].channels.size());
  std::vector<PlanChannel> first, second;
  first.reserve(most);
  second.reserve(most);
  if ((first.data() > second.data()) != first_is_higher) std::swap(first, second);
  first.assign(p.roles[0].channels.begin(), p.roles[0].channels.end());
  second.assign(p.roles[1].channels.begin(), p.roles[1].channels.end());
  p.roles[0].channels = std::move(first);
  p.roles[1].channels = std::move(second);
  REQUIRE((p.roles[0].channels.data() > p.roles[1].channels.data()) == first_is_higher);
  return p;
}

}  // namespace

TEST_CASE("feeds that wait are told stage by stage, wherever their channels lie in memory") {
  const auto ops = kernels::standard_ops();
  Graph g(ops);
  g.program("sample", {5, 1});
  g.unit("in");
  Value zebra = g.feed("zebra", {DType::i32, {1}}, "token");
  zebra = g.actor("echo", "first", {zebra}, {{"token", {DType::i32, {1}}}})[0];
  g.unit("out");
  Value ant = g.feed("ant", {DType::i32, {1}}, "token");
  g.report("token", g.actor("echo", "second", {zebra, ant}, {{"token", {DType::i32, {1}}}})[0]);
  const auto p = compile_over(g, {1, 1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  for (const bool first_is_higher : {false, true}) {
    CAPTURE(first_is_higher);
    const Plan plan = with_channels(*p, first_is_higher);
    SessionOptions options;
    options.feed = [](const std::string&, std::int64_t, std::int32_t, const Report*) { return std::vector<std::byte>(4); };
    Session session(plan, options, [](Rank, const ToWorker&) {});
    session.begin();
    const std::string said = session.waits_for();
    const auto at = said.find("feed 'zebra' waits for report 'token' of microbatch 0\n  feed 'ant' waits for report 'token' of microbatch 0");
    CHECK_MESSAGE(at != std::string::npos, said);
  }
}

TEST_CASE("what the application reports under the name 'loss' is its own; the session sums what is minimised") {
  const auto ops = kernels::standard_ops();
  double with = 0, without = 0;
  for (double* loss : {&with, &without}) {
    Graph g(ops);
    g.program("train", {4, 2});
    g.unit("in");
    Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
    if (loss == &with) g.report("loss", x);
    x = g.op("linear", {x, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
    Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 6}}}}, {{"stream", std::string("t")}})[0];
    g.minimize(g.op("mse_loss", {x, t}, {{"scale", 1.0 / 8}})[0], {});
    const auto p = compile_over(g, {2});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    SessionOptions session;
    session.on_step = [&](const StepResult& r) { *loss = r.loss; };
    const auto r = run_simulated(*p, ops, actor_set(), session, {});
    REQUIRE_MESSAGE(r.ok(), r.status().message());
  }
  CHECK(with == without);
  CHECK(with != 0);
}
