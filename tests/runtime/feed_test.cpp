// Values that the session sends: prompts, commands. A feed may wait for a report of the microbatch before.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "runtime/session/session.h"
#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Publishes what it was fed, plus one; reports the same under a name of its own.
class Echo final : public actors::UserActor {
 public:
  Status act(actors::UserCall& call) override {
    const std::int32_t value = call.in[0].as<std::int32_t>()[0] + 1;
    call.out[0].as<std::int32_t>()[0] = value;
    call.report("aside", {static_cast<double>(value) * 1000});
    return {};
  }
};

/// A trained layer, and a program "sample" of some microbatches: prompt -> echo -> report "token".
Graph fed_graph(const kernels::OpSet& ops, const std::string& name, const std::string& after, std::int64_t at_once = 1,
                const std::string& reports = {}, std::int64_t microbatches = 5) {
  Graph g(ops);
  g.program("train", {4, 2});
  g.unit("in");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  x = g.op("linear", {x, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
  g.unit("out");
  Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 6}}}}, {{"stream", std::string("t")}})[0];
  g.minimize(g.op("mse_loss", {x, t}, {{"scale", 1.0 / 8}})[0], {});
  g.program("sample", {microbatches, 1});
  g.unit("in");
  Value prompt = g.feed(name, {DType::i32, {1}}, after, at_once);
  g.unit("out");
  g.report("token", g.actor("echo", "echo", {prompt}, {{"token", {DType::i32, {1}}}}, {{"reports", reports}})[0]);
  return g;
}

struct Fed {
  std::vector<std::int32_t> asked;  // microbatches, in the order in which the session asked for them
  std::vector<double> tokens;
  Status status;
};

Fed run_fed(const Plan& p, const kernels::OpSet& ops, const std::string& feed, std::uint64_t seed,
            std::size_t bytes = 4) {
  auto set = actor_set();
  set["echo"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Echo>());
  };
  Fed fed;
  SessionOptions session;
  session.steps = 3;
  session.loss_divisor = 8;
  session.readers = [](std::int64_t version) {
    return version == 1 ? std::vector<std::string>{"sample"} : std::vector<std::string>{};
  };
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
      const auto r = run_fed(*p, ops, "prompt", seed);  // the actor's other report starts nothing
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

TEST_CASE(
    "of a feed that waits the first microbatches may be sent at once: later ones get the report of the one before") {
  const auto ops = kernels::standard_ops();
  const std::vector<std::vector<double>> tokens = {
      {11, 23, 47, 95, 191}, {11, 12, 25, 51, 103}, {11, 12, 13, 27, 55}, {11, 12, 13, 14, 29}, {11, 12, 13, 14, 15}};
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
  CHECK(fed_graph(ops, "prompt", "token", 0).status().message().find("feed 'prompt': at_once is 0") !=
        std::string::npos);
  auto p = compile_over(fed_graph(ops, "prompt", "token", 2), {1});
  REQUIRE(p.ok());
  for (auto& c : p->roles[0].channels)
    if (c.kind == PlanChannel::Kind::feed) c.at_once = 0;
  CHECK_MESSAGE(verify(*p).message().find("channel 'prompt' feeds 0 microbatches at once") != std::string::npos,
                verify(*p).message());
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

TEST_CASE("a feed of the wrong size ends a program of which no place has anything to say before it is fed, too") {
  const auto ops = kernels::standard_ops();
  auto set = actor_set();
  set["echo"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Echo>());
  };
  for (const auto& dp : meshes) {
    Graph g(ops);
    g.program("sample", {5, 1});
    g.unit("in");
    const Value prompt = g.feed("prompt", {DType::i32, {1}});
    g.unit("out");
    g.report("token", g.actor("echo", "echo", {prompt}, {{"token", {DType::i32, {1}}}})[0]);
    const auto p = compile_over(g, dp);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    SessionOptions session;
    session.feed = [](const std::string&, std::int64_t, std::int32_t, const Report*) {
      return std::vector<std::byte>(3);
    };
    const auto r = run_simulated(*p, ops, set, session);
    CHECK_MESSAGE(r.status().message() == "feed 'prompt', microbatch 0 of step 0: got 3 bytes, and its tensor has 4",
                  r.status().message());
  }
}

TEST_CASE("an actor's factory that returns nothing ends the job with the actor's name") {
  const auto ops = kernels::standard_ops();
  auto set = actor_set();
  set["echo"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>();
  };
  const auto p = compile_over(fed_graph(ops, "prompt", "token"), {1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const auto r = run_simulated(*p, ops, set, SessionOptions{});
  REQUIRE_FALSE(r.ok());
  CHECK_MESSAGE(r.status().message().find("'echo': its factory has returned no actor") != std::string::npos,
                r.status().message());
}

TEST_CASE("a feed that no node reads and two feeds of one name are refused by name") {
  const auto ops = kernels::standard_ops();
  Graph unread = fed_graph(ops, "prompt", "token");
  unread.feed("position", {DType::i32, {1}}, "token");
  const auto p = compile_over(unread, {1});
  REQUIRE_FALSE(p.ok());
  CHECK_MESSAGE(p.status().message().find("'position' of program 'sample' has no reader") != std::string::npos,
                p.status().message());
  Graph twice = fed_graph(ops, "prompt", "token");
  twice.feed("prompt", {DType::i32, {1}});
  CHECK_MESSAGE(twice.status().message().find("feed 'prompt' is already in program 'sample'") != std::string::npos,
                twice.status().message());
}

TEST_CASE(
    "a feed that waits for a report that its program does not make is refused by name, in a graph and in a plan") {
  const auto ops = kernels::standard_ops();
  // "aside" is reported by an actor that does not say so
  for (const std::string after : {"answer", "aside", "tok", "loss"}) {
    const auto p = compile_over(fed_graph(ops, "prompt", after), {1});
    REQUIRE_FALSE(p.ok());
    const std::string named = "feed 'prompt' of program 'sample' waits for report '" + after +
                              "', which this program does not make";
    CHECK_MESSAGE(p.status().message().find(named) != std::string::npos, p.status().message());
  }
  auto p = compile_over(fed_graph(ops, "prompt", "token"), {1, 1});
  REQUIRE(p.ok());
  REQUIRE(verify(*p).ok());
  for (auto& role : p->roles)
    for (auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::feed) c.after = "answer";
  CHECK_MESSAGE(
      verify(*p).message().find("channel 'prompt' waits for report 'answer', which no actor of its program makes") !=
          std::string::npos,
      verify(*p).message());
}

TEST_CASE(
    "a feed may wait for what an actor's body reports, where the actor says so; one that never does is named by the "
    "session") {
  const auto ops = kernels::standard_ops();
  for (const std::string reports : {"aside", "other,aside", "aside,never", "never"}) {
    const std::string after = reports == "never" ? "never" : "aside";
    CAPTURE(reports);
    const auto p = compile_over(fed_graph(ops, "prompt", after, 1, reports, 3), {1, 1});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    REQUIRE_MESSAGE(verify(*p).ok(), verify(*p).message());
    const auto r = run_fed(*p, ops, "prompt", 0);
    CHECK(r.status.ok() == (after == "aside"));
    // 1000 times as large, then twice, then one more
    if (r.status.ok()) CHECK(r.tokens == std::vector<double>{11, 22001, 44002001});
    else
      CHECK_MESSAGE(
          r.status.message().find("feed 'prompt' waits for report 'never' of microbatch 0") != std::string::npos,
          r.status.message());
  }
}

namespace {

/// Reports the part of a prompt that its place has, plus one.
class PartReader final : public actors::UserActor {
 public:
  Status act(actors::UserCall& call) override {
    call.report("part", {call.in[0].as<std::int32_t>()[0] + 1.0});
    return {};
  }
};

/// A feed of 3 microbatches, split along tp, that waits for what "parts" reports of its part.
Expected<Plan> split_feed(const kernels::OpSet& ops, const std::vector<std::int64_t>& dp, std::int64_t tp) {
  Graph g(ops);
  g.program("sample", {3, 1});
  g.unit("all");
  const Value prompt = g.feed("prompt", {DType::i32, {tp}}, "part");
  g.actor("parts", "parts", {prompt}, {}, {{"reports", std::string("part")}}, {NdSbp{Sbp::B(), Sbp::S(0)}});
  TROUPE_ASSIGN(Plan p, compile_over(g, dp, tp));
  TROUPE_TRY(verify(p));
  return p;
}

/// A session of one step whose feed notes in `heard` what it is told, and sends place i of tp twice that plus 1000 i.
SessionOptions split_prompt(std::int64_t tp, std::vector<double>& heard) {
  SessionOptions session;
  session.steps = 1;
  session.feed = [tp, &heard](const std::string&, std::int64_t, std::int32_t, const Report* last) {
    if (last) heard.push_back(last->values.at(0));
    std::vector<std::int32_t> parts;
    for (std::int64_t i = 0; i < tp; ++i)
      parts.push_back(static_cast<std::int32_t>((last ? 2 * last->values.at(0) : 0) + 1000.0 * static_cast<double>(i)));
    const auto bytes = std::as_bytes(std::span(parts));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  return session;
}

}  // namespace

TEST_CASE(
    "NU-1 (runs): where places report different parts, a feed hears the report of the first place along model axes, in "
    "whatever order reports come") {
  const auto ops = kernels::standard_ops();
  const std::int64_t tp = 3;
  for (const auto& dp : std::vector<std::vector<std::int64_t>>{{1}, {2}}) {
    const auto p = split_feed(ops, dp, tp);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    auto set = actor_set();
    set["parts"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
      return std::unique_ptr<actors::UserActor>(std::make_unique<PartReader>());
    };
    std::vector<double> heard;
    const auto run = run_simulated(*p, ops, set, split_prompt(tp, heard));
    REQUIRE_MESSAGE(run.ok(), run.status().message());
    CHECK(heard == std::vector<double>{1, 3});

    std::vector<Rank> order(static_cast<std::size_t>(tp));
    std::iota(order.begin(), order.end(), 0);
    do {
      heard.clear();
      std::int32_t sent = 0;
      Session session(*p, split_prompt(tp, heard), nullptr,
                      [&](Rank, const ToWorker& m) { sent += std::holds_alternative<Feed>(m) ? 1 : 0; });
      REQUIRE(session.begin().ok());
      REQUIRE(sent == tp);
      for (const Rank r : order) {
        const bool told = !heard.empty();
        REQUIRE(session.handle(r, EarlyReport{0, {Report::Kind::value, "part", 0, 0, {7.0 + r}}}).ok());
        CHECK(!heard.empty() == (told || r == 0));
      }
      CHECK(heard == std::vector<double>{7});
      CHECK(sent == 2 * tp);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("a feed that waits for a report that two actors make is refused, in a graph and in a plan") {
  const auto ops = kernels::standard_ops();
  const auto graph = fed_graph(ops, "prompt", "token", 1, "other,token");
  const auto p = compile_over(graph, {1});
  REQUIRE_FALSE(p.ok());
  CHECK_MESSAGE(
      p.status().message().find("feed 'prompt' of program 'sample' waits for report 'token', which 2 actors or "
                                "ops of this program make") != std::string::npos,
      p.status().message());
  auto q = compile_over(fed_graph(ops, "prompt", "token", 1, "other"), {1});
  REQUIRE_MESSAGE(q.ok(), q.status().message());
  for (auto& role : q->roles)
    for (auto& a : role.actors)
      if (a.name == "echo") a.ops.at(0).attrs = {{"reports", std::string("token")}};
  CHECK_MESSAGE(verify(*q).message().find("waits for report 'token', which more than one actor of its program makes") !=
                    std::string::npos,
                verify(*q).message());
}

TEST_CASE("of a feed that waits for nothing a place has at most feed_window microbatches that it has not taken") {
  const auto ops = kernels::standard_ops();
  for (const auto& dp : meshes) {
    auto graph = fed_graph(ops, "prompt", "", 1, "", 200);
    const auto p = compile_over(graph, dp);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    SessionOptions options;
    options.steps = 1;
    options.readers = [](std::int64_t version) {
      return version == 0 ? std::vector<std::string>{"sample"} : std::vector<std::string>{};
    };
    std::int32_t asked = 0;
    options.feed = [&](const std::string&, std::int64_t, std::int32_t microbatch, const Report*) {
      CHECK(microbatch == asked);
      ++asked;
      return std::vector<std::byte>(4);
    };
    std::vector<std::pair<Rank, Feed>> sent;
    Session session(*p, options, nullptr, [&](Rank r, const ToWorker& m) {
      if (const auto* feed = std::get_if<Feed>(&m)) sent.emplace_back(r, *feed);
    });
    REQUIRE(session.begin().ok());
    CHECK(asked == feed_window);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const auto [rank, feed] = sent[i];
      CHECK(session.handle(rank, FeedTaken{feed.name, feed.program, feed.step, feed.microbatch}).ok());
      CHECK(asked == std::min<std::int32_t>(200, feed_window + static_cast<std::int32_t>(i) + 1));
      if (i == 0) {
        const Status again = session.handle(rank, FeedTaken{feed.name, feed.program, feed.step, feed.microbatch});
        CHECK(again.code() == Code::internal);
        CHECK_MESSAGE(again.message().find("has taken microbatch 0 of feed 'prompt', which is not on its way there") !=
                          std::string::npos,
                      again.message());
        const Status other = session.handle(rank, FeedTaken{"answer", feed.program, feed.step, feed.microbatch});
        CHECK_MESSAGE(other.message().find("of feed 'answer', which program 1 does not have") != std::string::npos,
                      other.message());
      }
    }
    CHECK(sent.size() == 200);
    const auto run = run_fed(*p, ops, "prompt", 3);  // and all of them arrive where they are taken
    REQUIRE_MESSAGE(run.status.ok(), run.status.message());
    CHECK(run.asked.size() == 200);
    CHECK(run.tokens.size() == 200);
    CHECK(run.tokens.back() == 10 + 199 + 1);
  }
}

TEST_CASE(
    "the game plays a feed that waits as the session sends it: each microbatch after the report of the one before, on "
    "any mesh") {
  const auto ops = kernels::standard_ops();
  for (const auto& dp : meshes)
    for (const bool waits : {false, true}) {
      CAPTURE(waits);
      Graph g(ops);
      g.program("relay", {5, 1});
      g.unit("in");
      const Value prompt = g.feed("prompt", {DType::i32, {1}}, waits ? "token" : "");
      g.unit("out");
      g.report("token", g.actor("echo", "echo", {prompt}, {{"token", {DType::i32, {1}}}})[0]);
      auto p = compile_over(g, dp);
      REQUIRE_MESSAGE(p.ok(), p.status().message());
      for (auto& role : p->roles)
        for (auto& a : role.actors) a.cost_s = a.kind == PlanActor::Kind::user ? 1 : 0;
      p->costs.intra_node = {0, std::numeric_limits<double>::infinity()};
      GameOptions options;
      options.steps = 1;
      options.control_s = 10;
      const auto played = play(*p, options);
      REQUIRE_MESSAGE(played.ok(), played.status().message());
      // of the last stage's places, which share the microbatches, the one that has most
      const auto most = static_cast<double>((5 + dp.back() - 1) / dp.back());
      if (waits) CHECK(played->step_s == doctest::Approx(5 * 1 + 4 * 10 + 10));  // acts, feeds, the commit
      else CHECK(played->step_s == doctest::Approx(most * 1 + 10));              // acts at one place, the commit
    }
}

TEST_CASE(
    "the game sends a feed that waits for nothing as the session does: a microbatch beyond feed_window goes out when "
    "the session has heard that an earlier one is taken, on every dp width") {
  const auto ops = kernels::standard_ops();
  constexpr std::int64_t all = 61;
  constexpr double control_s = 100;
  for (const std::int64_t width : {1, 2, 3}) {
    CAPTURE(width);
    Graph g(ops);
    g.program("relay", {all, 1});
    g.unit("only");
    const Value prompt = g.feed("prompt", {DType::i32, {1}}, "");
    g.report("token", g.actor("echo", "echo", {prompt}, {{"token", {DType::i32, {1}}}})[0]);
    auto p = compile_over(g, {width});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    std::size_t slots = 0;
    for (auto& a : p->roles[0].actors) a.cost_s = a.kind == PlanActor::Kind::user ? 1 : 0;
    for (const auto& c : p->roles[0].channels)
      if (c.kind == PlanChannel::Kind::feed) slots = static_cast<std::size_t>(c.slots);
    REQUIRE(slots > 0);
    GameOptions options;
    options.steps = 1;
    options.control_s = control_s;
    const auto played = play(*p, options);
    REQUIRE_MESSAGE(played.ok(), played.status().message());
    // Microbatch m is the (m / width)-th of its place, which has room for `slots` of them beside the one in its act.
    std::vector<double> taken(all), done(all);
    std::vector<double> heard;  // when the session has heard of each that is taken
    for (std::size_t m = 0; m < all; ++m) {
      std::sort(heard.begin(), heard.end());
      const double sent = m < feed_window ? 0 : heard[m - feed_window];
      const auto before = [&](std::size_t n) { return n * width > m ? 0.0 : done[m - n * width]; };
      taken[m] = std::max(sent, before(slots));
      done[m] = std::max(taken[m], before(1)) + 1;
      heard.push_back(taken[m] + control_s);
    }
    CHECK(played->step_s == doctest::Approx(*std::max_element(done.begin(), done.end()) + control_s));
  }
}

TEST_CASE(
    "a plan whose feed ends its step before the session has heard that all of it is taken completes in the game") {
  const auto ops = kernels::standard_ops();
  for (const std::int64_t all : {16, 48, 64}) {
    CAPTURE(all);
    Graph g(ops);
    g.program("relay", {all, 1});
    g.unit("only");
    const Value prompt = g.feed("prompt", {DType::i32, {1}}, "");
    g.report("token", g.actor("echo", "echo", {prompt}, {{"token", {DType::i32, {1}}}})[0]);
    const auto p = compile_over(g, {1});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    const Status s = verify(*p);
    CHECK_MESSAGE(s.ok(), s.message());
  }
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
    options.steps = 2;
    options.feed = [](const std::string&, std::int64_t, std::int32_t, const Report*) {
      return std::vector<std::byte>(4);
    };
    Session session(plan, options, nullptr, [](Rank, const ToWorker&) {});
    REQUIRE(session.begin().ok());
    const std::string said = session.waits_for();
    CHECK_MESSAGE(
        said.find("feed 'zebra' waits for the messages of an earlier step, which go first\n  feed 'ant' waits "
                  "for the messages of an earlier step, which go first") != std::string::npos,
        said);
    const auto at = said.find(
        "feed 'zebra' waits for 1 place to take microbatch 0\n  feed 'ant' waits for 1 place to take microbatch 0");
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
