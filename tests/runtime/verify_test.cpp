// The verifier: plans that the compiler makes are accepted; faults planted in actors, channels and their order are
// refused with the culprit's name.
#include <algorithm>
#include <numeric>

#include "runtime/simulate/token_game.h"
#include "tests/runtime/planted.h"

using namespace planted;

TEST_CASE("every plan of the MLP with up to 4 stages of dp 1 to 4 is accepted, and stash stays within S - s") {
  Shape_ s;
  s.width = 6;
  s.hidden = 5;
  int plans = 0;
  std::vector<std::vector<std::int64_t>> all = {{}}, next;
  for (int stages = 1; stages <= 4; ++stages) {
    next.clear();
    for (const auto& prefix : all)
      for (std::int64_t d = 1; d <= 4; ++d) {
        auto dp = prefix;
        dp.push_back(d);
        next.push_back(std::move(dp));
      }
    all = next;
    for (const auto& dp : all) {
      INFO(text(dp));
      s.tied = plans % 2;
      const Plan p = good_plan(dp, s);
      const auto result = play(p);
      REQUIRE_MESSAGE(result.ok(), result.status().message());
      CHECK(verify(p).ok());
      for (std::size_t st = 0; st < dp.size(); ++st) {
        // S - s where all stages are equally wide; else one for each place downstream, shared by those of this stage.
        const auto downstream = std::accumulate(dp.begin() + static_cast<std::ptrdiff_t>(st), dp.end(),
                                                std::int64_t{0});
        CHECK(result->peak_stash[st] <= (downstream + dp[st] - 1) / dp[st]);
      }
      ++plans;
    }
  }
  CHECK(plans == 4 + 16 + 64 + 256);
}

TEST_CASE("a channel without slots is refused by its name") {
  const Plan good = good_plan();
  for (std::size_t r = 0; r < good.roles.size(); ++r)
    for (std::size_t c = 0; c < good.roles[r].channels.size(); ++c) {
      Plan p = good;
      p.roles[r].channels[c].slots = 0;
      check_refused(p, {"'" + p.roles[r].channels[c].name + "'", "0 slots", "stage " + std::to_string(r)});
    }
}

TEST_CASE("a channel that lost a reader is refused with both names") {
  const Plan good = good_plan();
  for (std::size_t r = 0; r < good.roles.size(); ++r)
    for (std::size_t c = 0; c < good.roles[r].channels.size(); ++c)
      for (std::size_t k = 0; k < good.roles[r].channels[c].readers.size(); ++k) {
        Plan p = good;
        auto& channel = p.roles[r].channels[c];
        const auto reader = p.roles[r].actors[channel.readers[k].actor].name;
        channel.readers.erase(channel.readers.begin() + static_cast<std::ptrdiff_t>(k));
        check_refused(p, {"'" + channel.name + "'", "'" + reader + "'"});
      }
}

TEST_CASE("a channel with a reader that does not listen is refused with both names") {
  Plan p = good_plan();
  auto& channel = p.roles[0].channels[0];
  const auto actor = channel.readers.empty() ? 0 : channel.readers[0].actor;
  for (std::int32_t port : {99, -1}) {
    Plan bad = p;
    bad.roles[0].channels[0].readers.push_back({actor, port});
    check_refused(bad, {"'" + channel.name + "'", "'" + p.roles[0].actors[actor].name + "'"});
  }
  Plan twice = p;  // the same port, told twice: every token would be acked once and awaited twice
  twice.roles[0].channels[0].readers.push_back(channel.readers.at(0));
  check_refused(twice, {"'" + channel.name + "'", "'" + p.roles[0].actors[actor].name + "'"});
  Plan unread = p;
  unread.roles[0].channels[0].readers.push_back({1000, 0});
  check_refused(unread, {"'" + channel.name + "'"});
}

TEST_CASE("a writer or a port that is not there is refused by name") {
  Plan p = good_plan();
  p.roles[0].channels[0].writer = 1000;
  check_refused(p, {"'" + p.roles[0].channels[0].name + "'"});
  p = good_plan();
  p.roles[1].actors[0].in.push_back(4711);
  check_refused(p, {"'" + p.roles[1].actors[0].name + "'"});
  p = good_plan();
  for (auto& a : p.roles[0].actors)
    if (a.kind == PlanActor::Kind::exchange) {
      a.exchange = 4711;
      check_refused(p, {"'" + a.name + "'"});
      break;
    }
  p = good_plan();
  p.roles.pop_back();
  CHECK_FALSE(verify(p).ok());
}

TEST_CASE("an actor without ports is refused by name: it would act without end") {
  Plan p = good_plan({1});
  PlanActor lonely;
  lonely.kind = PlanActor::Kind::user;
  lonely.name = "lonely";
  lonely.stream = "host";
  p.roles[0].actors.push_back(lonely);
  check_refused(p, {"'lonely'"});
}

TEST_CASE("a stash that is too small for the order of acts is a deadlock that names who waits for what") {
  // The backward pass is told to wait until the forward pass is through with all microbatches (GPipe's order).
  // With one stash slot per microbatch that is a legal plan; with 1F1B's slots it can never finish.
  Plan p = unshared(good_plan({1, 1}));
  PlanRole& role = p.roles[0];
  const auto fwd = find_actor(role, "layer0.fwd"), bwd = find_actor(role, "layer0.bwd");
  connect(role, fwd, bwd, "all.forward", Rate::step);
  Plan roomy = p;
  for (auto& r : roomy.roles)
    for (auto& c : r.channels)
      if (c.kind != PlanChannel::Kind::gradient && c.kind != PlanChannel::Kind::parameter) c.slots = 8;
  const auto fits = verify(roomy);
  CHECK_MESSAGE(fits.ok(), fits.message());
  check_refused(p, {"deadlock", "'train'", "rank 0", "layer0.fwd", "waits for a free slot of"});
}

TEST_CASE("a cycle without a token is a deadlock that names the actors on it") {
  Plan p = good_plan({1});
  PlanRole& role = p.roles[0];
  const auto first = find_actor(role, "layer0.fwd"), last = find_actor(role, "layer1.fwd");
  connect(role, last, first, "back.edge", Rate::microbatch);
  check_refused(p, {"deadlock", "layer0.fwd", "waits for a token on 'back.edge'"});
}

TEST_CASE("an initial token that is missing is a deadlock that names the parameters") {
  Plan p = good_plan({1});
  for (auto& c : p.roles[0].channels)
    if (c.name == "layer1.params") c.initial = false;
  check_refused(p, {"deadlock", "'layer1.params'"});
}

TEST_CASE("rates that do not balance are refused: once per step against once per microbatch") {
  Plan p = good_plan({1});
  for (auto& c : p.roles[0].channels)
    if (c.name == "layer0.params") c.rate = Rate::microbatch;
  check_refused(p, {"imbalance", "'layer0.update'", "'layer0.params'"});

  p = good_plan({1});  // a step-rate reader of a microbatch channel
  const auto fwd = find_actor(p.roles[0], "layer0.fwd"), norm = find_actor(p.roles[0], "layer0.norm");
  connect(p.roles[0], fwd, norm, "per.microbatch", Rate::microbatch);
  check_refused(p, {"imbalance", "'layer0.norm'", "'per.microbatch'"});

  p = good_plan({1});  // a microbatch actor that pretends to write once per step without accumulating
  const auto bwd = find_actor(p.roles[0], "layer0.bwd");
  connect(p.roles[0], fwd, bwd, "per.step", Rate::step).kind = PlanChannel::Kind::activation;
  check_refused(p, {"imbalance", "'layer0.fwd'", "'per.step'"});
}

TEST_CASE("an extra reader that never acts is a deadlock that names it and what it waits for") {
  const Plan good = unshared(good_plan({2, 1}));
  int planted = 0;
  for (std::size_t c = 0; c < good.roles[0].channels.size(); ++c) {
    const auto kind = good.roles[0].channels[c].kind;
    if (good.roles[0].channels[c].writer < 0 || kind == PlanChannel::Kind::gradient ||
        kind == PlanChannel::Kind::reduced || kind == PlanChannel::Kind::rounded || kind == PlanChannel::Kind::turn)
      continue;
    if (good.roles[0].actors[good.roles[0].channels[c].writer].program != 0) continue;
    Plan p = good;
    PlanRole& role = p.roles[0];
    PlanActor idle;
    idle.kind = PlanActor::Kind::user;
    idle.name = "idle.reader";
    idle.stream = "host";
    idle.rate = role.channels[c].rate;
    idle.ops = {{"data", "idle.reader", {}, {}, {}}};
    role.actors.push_back(idle);
    const auto index = static_cast<std::int32_t>(role.actors.size()) - 1;
    role.channels[c].readers.push_back({index, 0});
    role.actors[index].in.push_back(static_cast<std::int32_t>(c));
    connect(role, index, index, "never", idle.rate);  // waits for itself
    INFO(role.channels[c].name);
    check_refused(p, {"deadlock", "idle.reader", "'never'"});
    ++planted;
  }
  CHECK(planted >= 8);
}

TEST_CASE("a reader in another program is an imbalance that names channel, reader and both programs") {
  Plan p = good_plan({1});
  PlanRole& role = p.roles[0];
  PlanActor reader;
  reader.kind = PlanActor::Kind::user;
  reader.name = "tardy";
  reader.stream = "host";
  reader.closes_step = true;
  reader.ops = {{"data", "tardy", {}, {}, {}}};
  role.actors.push_back(reader);
  const auto index = static_cast<std::int32_t>(role.actors.size()) - 1;
  // It reads 8 tokens a step and waits for a channel that an evaluation of 3 microbatches fills.
  const auto fwd = find_actor(role, "layer0.fwd"), eval = find_actor(role, "evaluate.layer0.fwd");
  connect(role, fwd, index, "many", Rate::microbatch).slots = 100;
  connect(role, eval, index, "few", Rate::microbatch).slots = 100;
  check_refused(p, {"imbalance", "channel 'few'", "program 'evaluate'", "reader 'tardy'", "program 'train'"});
  p.roles[0].actors[index].program = 1;  // now it is the other channel that carries too many
  check_refused(p, {"imbalance", "channel 'many'", "program 'train'", "reader 'tardy'", "program 'evaluate'"});
}

TEST_CASE("a gradient of more rows than a norm can add is refused by its name: it would be left out of the norm") {
  Plan p = good_plan({1});
  const auto gradient = std::find_if(p.tensors.begin(), p.tensors.end(),
                                     [](const PlanTensor& t) { return t.gradient_of >= 0; });
  REQUIRE(gradient != p.tensors.end());
  gradient->shape[0] = gradient_rows_max + 1;
  check_refused(p, {"gradient '" + gradient->name + "'", "2147483648 rows"});
}

TEST_CASE("a plan with costs that no machine can have is refused with the member's name") {
  Plan p = good_plan({1});
  p.costs.places_per_node = 0;
  check_refused(p, {"costs", "places_per_node is 0"});
}

TEST_CASE("a tensor of more bytes than 64 bits count is refused by its name: a product that wraps is no small tensor") {
  for (const Shape& shape : {Shape{std::int64_t{1} << 44, std::int64_t{1} << 44}, Shape{1 << 30, 1 << 30, 1 << 30}}) {
    CAPTURE(to_string(shape));
    Plan p = good_plan({1});
    PlanTensor& t = p.tensors[static_cast<std::size_t>(p.params[0].tensor)];
    t.shape = shape;
    check_refused(p, {"tensor '" + t.name + "' is larger than any memory"});
  }
}

TEST_CASE("a program in which no actor closes a step is refused by its name: the session would wait for it for ever") {
  Plan p = good_plan({1});
  p.programs.push_back({"idle", {}, false, {}});
  check_refused(p, {"program 'idle' has no actor"});
  Graph g(ops());
  g.program("first", {});
  g.program("second", {});
  g.actor("data", "x", {}, {{"x", {DType::f32, {1, 6}}}}, {{"stream", std::string("x")}});
  const auto made = compile(g, {});
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  check_refused(*made, {"program 'first' has no actor"});
}
