// The life of one actor, seen through its Outbox: what it tells whom, and when.
#include <doctest/doctest.h>

#include <algorithm>

#include "actors/actor_core.h"
#include "tests/last_words.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

/// Writes down what an actor says, in order; submitted acts wait here until the test lets them start and end.
struct Log final : Outbox {
  std::vector<std::string> said;
  std::vector<ActContext> submitted;
  std::vector<Status> failures;

  static std::string text(const Token& t) {
    return "slot " + std::to_string(t.slot) + " seq " + std::to_string(t.sequence) + " step " + std::to_string(t.step) +
           " mb " + std::to_string(t.microbatch);
  }
  void arrive(std::int32_t actor, std::int32_t port, const Token& t) override {
    said.push_back("token " + std::to_string(actor) + "." + std::to_string(port) + ": " + text(t));
  }
  void ack(std::int32_t actor, std::int32_t port, std::int32_t slot) override {
    said.push_back("ack " + std::to_string(actor) + "." + std::to_string(port) + ": slot " + std::to_string(slot));
  }
  void submit(ActContext c) override {
    said.push_back("submit " + std::to_string(c.act.number));
    submitted.push_back(std::move(c));
  }
  void step_closed(std::int64_t step) override { said.push_back("closed " + std::to_string(step)); }
  void failed(const Status& s) override {
    said.push_back("failed " + s.message());
    failures.push_back(s);
  }
  std::vector<std::string> take() { return std::exchange(said, {}); }
  bool mentions(const std::string& what) const {
    return std::any_of(said.begin(), said.end(),
                       [&](const std::string& s) { return s.find(what) != std::string::npos; });
  }
};

using Said = std::vector<std::string>;

Token token(std::int32_t slot, std::uint32_t sequence, std::int64_t step, std::int32_t microbatch) {
  Token t;
  t.slot = slot;
  t.sequence = sequence;
  t.step = step;
  t.microbatch = microbatch;
  return t;
}

/// in: one activation (actor 1) per microbatch. out: `y`, read by actor 2 on the same stream and actor 3 elsewhere.
ActorSpec chain(std::int32_t slots = 2, bool writer_on_stream = false) {
  ActorSpec s;
  s.name = "layer";
  s.in = {{"x", 1}};
  s.writers = {{1, 7, writer_on_stream}};
  s.out = {{"y", slots, 1}};
  s.readers = {{{2, 4, 0, true}, {3, 5, 0, false}}};
  s.out_step = {0};
  s.initial = {false};
  s.microbatches = {0, 1, 2, 3};
  return s;
}

ActDone ok(std::int64_t step = -1) { return {{}, 10, 20, step, -1}; }

}  // namespace

TEST_CASE("PA-1 (one waits): at most one act waits for its stream, whatever tokens and credits are there") {
  Log log;
  ActorCore core(chain(3), log, nullptr);
  core.begin(0, every_program);
  for (int m = 0; m < 3; ++m) core.arrive(0, token(m, m, 0, m));
  CHECK(log.take() == Said{"submit 0"});
  CHECK(log.submitted[0].microbatch == 0);
  core.started(0);  // now the second may queue, although the first runs
  CHECK(log.mentions("submit 1"));
  CHECK_FALSE(log.mentions("submit 2"));
  core.started(1);
  CHECK(log.mentions("submit 2"));
}

TEST_CASE("an actor does not act before it is told to begin") {
  Log log;
  ActorCore core(chain(), log, nullptr);
  core.arrive(0, token(0, 0, 0, 0));
  CHECK(log.said.empty());
  core.begin(0, every_program);
  CHECK(log.take() == Said{"submit 0"});
}

TEST_CASE(
    "PA-2 (notification): readers and writers on the own stream are told at the start of an act, all others at its "
    "end") {
  for (const bool on_stream : {false, true}) {
    Log log;
    ActorCore core(chain(2, on_stream), log, nullptr);
    core.begin(3, every_program);
    core.arrive(0, token(6, 0, 3, 0));
    log.take();
    core.started(0);
    const std::string ack = "ack 1.7: slot 6";
    CHECK(log.take() ==
          (on_stream ? Said{ack, "token 2.4: slot 0 seq 0 step 3 mb 0"} : Said{"token 2.4: slot 0 seq 0 step 3 mb 0"}));
    core.done(0, ok());
    CHECK(log.take() ==
          (on_stream ? Said{"token 3.5: slot 0 seq 0 step 3 mb 0"} : Said{"token 3.5: slot 0 seq 0 step 3 mb 0", ack}));
  }
}

TEST_CASE("PA-2: a slot told early is free again only when the early and the late readers have acked") {
  Log log;
  ActorCore core(chain(1), log, nullptr);
  core.begin(0, every_program);
  core.arrive(0, token(0, 0, 0, 0));
  core.started(0);
  core.ack(0, 0);  // the reader on the stream may ack before the act is done
  CHECK(core.ports().free_slots(0) == 0);
  core.done(0, ok());
  core.ack(0, 0);
  CHECK(core.ports().free_slots(0) == 1);
}

TEST_CASE("PA-3 (act order): tokens and acks go out in the order of acts where acts end in another order") {
  auto spec = chain(4);
  spec.readers = {{{3, 5, 0, false}}};
  std::vector<int> order = {0, 1, 2, 3};
  do {
    Log log;
    ActorCore core(spec, log, nullptr);
    core.begin(0, every_program);
    for (int m = 0; m < 4; ++m) core.arrive(0, token(m, m, 0, m));
    for (int m = 0; m < 4; ++m) core.started(m);
    log.take();
    for (int m : order) core.done(m, ok());
    Said expected;
    for (int m = 0; m < 4; ++m) {
      const auto n = std::to_string(m);
      expected.push_back("token 3.5: slot " + n + " seq " + n + " step 0 mb " + n);
      expected.push_back("ack 1.7: slot " + n);
    }
    CHECK(log.take() == expected);
    CHECK(core.idle());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE(
    "SL-4 (hold), SL-5 (every): a parameter serves all microbatches of a step, an accumulator publishes after the "
    "last") {
  ActorSpec s;
  s.name = "bwd";
  s.in = {{"dy", 1}, {"params", 3}};
  s.writers = {{1, 0, false}, {4, 0, true}};
  s.out = {{"grads", 1, 3}};
  s.readers = {{{2, 0, 0, false}}};
  s.out_step = {0};
  s.initial = {false};
  s.microbatches = {4, 5, 6};
  Log log;
  ActorCore core(s, log, nullptr);
  core.begin(0, every_program);
  core.arrive(1, token(0, 0, 0, -1));
  for (int m = 0; m < 3; ++m) {
    core.arrive(0, token(m, m, 0, 4 + m));
    CHECK(log.take() == Said{"submit " + std::to_string(m)});
    CHECK(log.submitted.back().microbatch == 4 + m);
    CHECK(log.submitted.back().local == m);
    CHECK(log.submitted.back().act.out[0].slot == 0);
    core.started(m);
    CHECK(log.take() == (m == 2 ? Said{"ack 4.0: slot 0"} : Said{}));
    core.done(m, ok());
    const std::string ack = "ack 1.0: slot " + std::to_string(m);
    CHECK(log.take() == (m == 2 ? Said{"token 2.0: slot 0 seq 0 step 0 mb -1", ack} : Said{ack}));
  }
  core.arrive(1, token(0, 1, 1, -1));
  core.arrive(0, token(0, 3, 1, 4));
  CHECK(log.said.empty());  // the next step waits for the gradients' slot
  CHECK(core.explain().find("waits for a free slot of 'grads'") != std::string::npos);
  core.ack(0, 0);
  CHECK(log.take() == Said{"submit 3"});
}

TEST_CASE("initial tokens reach the readers whose program is in the mask; with none the slot is free") {
  ActorSpec s;
  s.name = "update";
  s.in = {{"commit", 1}};
  s.writers = {{-1, 9, false}};
  s.out = {{"params", 1, 1}};
  s.readers = {{{1, 0, 0, true}, {2, 0, 1, true}, {3, 0, 2, false}}};
  s.out_step = {1};
  s.initial = {true};
  const std::string one = "token 1.0: slot 0 seq 0 step 5 mb -1", two = "token 2.0: slot 0 seq 0 step 5 mb -1",
                    three = "token 3.0: slot 0 seq 0 step 5 mb -1";
  for (ProgramMask mask = 0; mask < 8; ++mask) {
    Log log;
    ActorCore core(s, log, nullptr);
    core.begin(5, mask);
    Said expected;
    if (mask & 1) expected.push_back(one);
    if (mask & 2) expected.push_back(two);
    if (mask & 4) expected.push_back(three);
    CHECK(log.take() == expected);
    CHECK(core.ports().free_slots(0) == (mask ? 0 : 1));
    for (int acks = 0; acks < __builtin_popcount(mask); ++acks) {
      CHECK(core.ports().free_slots(0) == 0);
      core.ack(0, 0);
    }
    CHECK(core.ports().free_slots(0) == 1);
    // The commit of step 5 says who reads version 6.
    Token commit = token(0, 0, 5, -1);
    commit.readers = 0b101;
    core.arrive(0, commit);
    CHECK(log.take() == Said{"submit 0"});
    core.started(0);
    CHECK(log.take() == Said{"token 1.0: slot 0 seq 1 step 6 mb -1"});
    core.done(0, ok());
    CHECK(log.take() == Said{"token 3.0: slot 0 seq 1 step 6 mb -1", "ack -1.9: slot 0"});
  }
}

TEST_CASE("an act without early readers is published at its end only") {
  auto s = chain(1);
  s.readers = {{{3, 5, 0, false}}};
  Log log;
  ActorCore core(s, log, nullptr);
  core.begin(0, every_program);
  core.arrive(0, token(0, 0, 0, 0));
  core.started(0);
  CHECK(last_words([&] { core.ack(0, 0); }).find("'") == std::string::npos);  // nothing to ack yet: SL-6 (strict acks)
  CHECK(last_words([&] { core.ack(0, 0); }) != "survived");
  core.done(0, ok());
  core.ack(0, 0);
  CHECK(core.ports().free_slots(0) == 1);
}

TEST_CASE("closes_step: the conductor is told once, after the last microbatch of each step is done") {
  auto s = chain(4);
  s.readers = {{}};
  s.closes_step = true;
  s.microbatches = {2, 5};
  Log log;
  ActorCore core(s, log, nullptr);
  core.begin(0, every_program);
  int act = 0;
  for (std::int64_t step = 0; step < 3; ++step)
    for (int m : {2, 5}) {
      core.arrive(0, token(0, act, step, m));
      core.started(act);
      log.take();
      core.done(act++, ok());
      CHECK(log.mentions("closed " + std::to_string(step)) == (m == 5));
      CHECK(log.mentions("closed") == (m == 5));
    }
}

TEST_CASE("closes_step: acts that end out of order close a step when the last of them is over") {
  auto s = chain(4);
  s.readers = {{}};
  s.closes_step = true;
  s.microbatches = {0, 1};
  Log log;
  ActorCore core(s, log, nullptr);
  core.begin(0, every_program);
  for (int m = 0; m < 2; ++m) core.arrive(0, token(m, m, 0, m));
  core.started(0);
  core.started(1);
  core.done(1, ok());
  CHECK_FALSE(log.mentions("closed"));
  core.done(0, ok());
  CHECK(log.said.back() == "closed 0");
}

TEST_CASE("a receiver without inputs learns the step from what it received") {
  ActorSpec s;
  s.name = "receive";
  s.out = {{"y", 2, 1}};
  s.readers = {{{3, 0, 0, false}}};
  s.out_step = {0};
  s.initial = {false};
  s.microbatches = {1, 3};
  s.closes_step = true;
  Log log;
  ActorCore core(s, log, nullptr);
  core.begin(0, every_program);
  CHECK(log.submitted.at(0).step == -1);
  core.started(0);
  core.started(1);
  CHECK(log.take() == Said{"submit 0", "submit 1"});  // two slots, two receives posted
  core.done(0, ok(12));
  CHECK(log.take() == Said{"token 3.0: slot 0 seq 0 step 12 mb 1"});
  core.done(1, ok(12));
  CHECK(log.take() == Said{"token 3.0: slot 1 seq 1 step 12 mb 3", "closed 12"});
}

TEST_CASE("a failed act is told once, publishes and acks nothing, and stops the actor") {
  auto s = chain(4);
  s.readers = {{{3, 5, 0, false}}};
  s.closes_step = true;
  Log log;
  ActorCore core(s, log, nullptr);
  core.begin(0, every_program);
  for (int m = 0; m < 3; ++m) core.arrive(0, token(m, m, 0, m));
  core.started(0);
  log.take();
  core.done(0, {invalid("disk on fire"), 0, 0, -1, -1});
  CHECK(log.take() == Said{"failed disk on fire"});
  core.started(1);
  core.done(1, ok());
  core.arrive(0, token(3, 3, 0, 3));
  CHECK(log.take() == Said{});  // nothing more: what comes after a failure would reach readers with a gap
}

TEST_CASE("an act that ended well after an earlier one failed is not published: its readers never see a gap") {
  // Over the network acts end in any order. A reader that got microbatch 1 first would end the process (SL-3 token
  // order).
  auto s = chain(4);
  s.readers = {{{3, 5, 0, false}}};
  for (const bool later_first : {true, false}) {
    Log log;
    ActorCore core(s, log, nullptr);
    core.begin(0, every_program);
    for (int m = 0; m < 2; ++m) core.arrive(0, token(m, m, 0, m));
    core.started(0);
    core.started(1);
    log.take();
    if (later_first) core.done(1, ok());
    core.done(0, {Status(Code::unavailable, "peer is gone"), 0, 0, -1, -1});
    if (!later_first) core.done(1, ok());
    CHECK(log.take() == Said{"failed peer is gone"});
  }
}

namespace {

/// Two acts under way, read by an actor of another stream.
struct TwoUnderWay {
  Log log;
  ActorCore core;
  TwoUnderWay() : core(spec(), log, nullptr) {
    core.begin(0, every_program);
    for (int m = 0; m < 2; ++m) core.arrive(0, token(m, m, 0, m));
    core.started(0);
    core.started(1);
  }
  static ActorSpec spec() {
    auto s = chain(4);
    s.readers = {{{3, 5, 0, false}}};
    return s;
  }
};

}  // namespace

TEST_CASE("PA-3: a failure is told at once, not after the acts before it: one of them may never end") {
  TwoUnderWay two;
  auto& [log, core] = two;
  log.take();
  core.done(1, {invalid("wrong size"), 0, 0, -1, -1});
  CHECK(log.take() == Said{"failed wrong size"});
  CHECK(core.ports().free_slots(0) == 2);  // no other act has what act 0 still reads and writes
  core.done(0, ok());
  CHECK(log.take() == Said{});
}

TEST_CASE("two failed acts of one actor are one failure") {
  TwoUnderWay two;
  auto& [log, core] = two;
  core.done(0, {Status(Code::unavailable, "first"), 0, 0, -1, -1});
  core.done(1, {Status(Code::unavailable, "second"), 0, 0, -1, -1});
  REQUIRE(log.failures.size() == 1);
  CHECK(log.failures[0].message() == "first");
}

TEST_CASE("explain names the actor, its act, the inputs without a token and the outputs without a credit") {
  ActorSpec s = chain(1);
  s.in.push_back({"params", 4});
  s.writers.push_back({4, 0, true});
  Log log;
  ActorCore core(s, log, nullptr);
  core.begin(0, every_program);
  CHECK(core.explain() == "layer: 0 acts begun, waits for a token on 'x', waits for a token on 'params'");
  core.arrive(1, token(0, 0, 0, -1));
  core.arrive(0, token(0, 0, 0, 0));
  CHECK(core.explain().find("act 0 waits for its stream") != std::string::npos);
  core.started(0);
  const auto text = core.explain();
  CHECK(text.find("act 0 runs") != std::string::npos);
  CHECK(text.find("waits for a token on 'x'") != std::string::npos);
  CHECK(text.find("'params'") == std::string::npos);  // it has that one
  CHECK(text.find("waits for a free slot of 'y'") != std::string::npos);
}

TEST_CASE("what the last acts of a run leave for acts behind it no reader gets, and their slots are free at once") {
  for (const std::int32_t lag : {1, 3, 4}) {
    Log log;
    ActorSpec spec = chain(1);
    spec.out[0].acts_per_step = 4, spec.out[0].unread = lag;
    ActorCore core(spec, log, nullptr);
    core.begin(0, every_program);
    for (std::uint32_t act = 0; act < 12; ++act) {  // three runs, with one slot
      const auto m = static_cast<std::int32_t>(act % 4);
      core.arrive(0, token(0, act, act / 4, m));
      REQUIRE(log.submitted.size() == act + 1);
      core.started(act);
      core.done(act, ok());
      CHECK(log.mentions("token 2.4") == (m < 4 - lag));
      CHECK(log.mentions("token 3.5") == (m < 4 - lag));
      CHECK(core.ports().free_slots(0) == (m < 4 - lag ? 0 : 1));
      log.take();
      if (m < 4 - lag) core.ack(0, 0), core.ack(0, 0);
    }
  }
}

TEST_CASE("a port that reads late has no token in the first acts of a run, then that of the act so many before") {
  Log log;
  ActorSpec spec = chain(4);
  spec.in.push_back({"late", 1, {Phase::skip, Phase::skip, Phase::last, Phase::last}, false, 2});
  spec.writers.push_back({5, 6, false});
  ActorCore core(spec, log, nullptr);
  core.begin(0, every_program);
  for (std::uint32_t act = 0; act < 8; ++act) {
    const auto m = static_cast<std::int32_t>(act % 4);
    core.arrive(0, token(0, act, act / 4, m));
    if (m >= 2) {
      CHECK(log.submitted.size() == act);  // it waits
      core.arrive(1, token(m % 3, act / 4 * 2 + static_cast<std::uint32_t>(m) - 2, act / 4, m - 2));
    }
    REQUIRE(log.submitted.size() == act + 1);
    CHECK(log.submitted.back().act.in[1].read == (m >= 2));
    CHECK(log.submitted.back().step == act / 4);
    core.started(act);
    core.done(act, ok());
    CHECK(log.mentions("ack 5.6") == (m >= 2));
    log.take();
    const auto slot = log.submitted.back().act.out[0].slot;
    core.ack(0, slot), core.ack(0, slot);
  }
  core.arrive(0, token(0, 8, 2, 0));
  core.started(8), core.done(8, ok());
  core.arrive(0, token(0, 9, 2, 1));
  core.started(9), core.done(9, ok());
  core.arrive(0, token(0, 10, 2, 2));
  const auto words = last_words([&] { core.arrive(1, token(0, 4, 2, 1)); });  // of the microbatch before
  CHECK(words.find("late") != std::string::npos);
}

TEST_CASE("tokens of two steps, or of another microbatch than the actor's, end the process") {
  ActorSpec s = chain(1);
  s.in.push_back({"params", 4});
  s.writers.push_back({4, 0, true});
  const auto meet = [&](std::int64_t step, std::int32_t microbatch) {
    return last_words([&] {
      Log log;
      ActorCore core(s, log, nullptr);
      core.begin(0, every_program);
      core.arrive(1, token(0, 0, 1, -1));
      core.arrive(0, token(0, 0, step, microbatch));
    });
  };
  CHECK(meet(1, 0) == "survived");
  CHECK(meet(2, 0).find("layer") != std::string::npos);
  CHECK(meet(1, 1).find("layer") != std::string::npos);
}
