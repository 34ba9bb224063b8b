// What the conductor of a worker writes into control channels.
#include <doctest/doctest.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/send.hpp>
#include <cstring>

#include "runtime/worker/conductor.h"
#include "runtime/worker/session_order.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

struct SteppedConfig : caf::actor_system_config {
  SteppedConfig() { set("scheduler.policy", caf::atom("testing")); }
};

/// Notes what a conductor tells the actors of its place.
class Listener final : public caf::event_based_actor {
 public:
  Listener(caf::actor_config& config, std::vector<std::string>* told) : caf::event_based_actor(config), told_(told) {
    actors::set_quiet_handlers(*this, [](const Status&) {});
  }
  caf::behavior make_behavior() override {
    return {
        [this](const actors::Begin& m) { told_->push_back("begin " + std::to_string(m.step)); },
        [this](const actors::Arrive& m) { told_->push_back("step " + std::to_string(m.token.step)); },
    };
  }

 private:
  std::vector<std::string>* told_;
};

}  // namespace

TEST_CASE(
    "the conductor hands exponents on: those of BeginRun before any actor begins, those of a commit behind it in the "
    "commit's slot; a message out of its order fails the worker") {
  constexpr std::size_t bytes = sizeof(actors::Commit) + 3 * sizeof(std::int32_t);
  std::vector<std::byte> slot(bytes);
  std::vector<std::string> told;
  SteppedConfig config;
  caf::actor_system system(config);
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  ConductorSpec spec;
  spec.channels.emplace(0, ConductorChannel{PlanChannel::Kind::commit, "commit", 0,
                                            actors::ControlChannel("commit", 1, {{0, 0}},
                                                                   {slot.data(), static_cast<std::int64_t>(bytes)})});
  spec.order = {.begun_as = {0, 1}, .closers = {0, 0}, .exponents = 3, .commits = 1};
  std::vector<FromWorker> sent;
  spec.send = [&](FromWorker m) { sent.push_back(std::move(m)); };
  spec.on_begin = [&](const BeginRun& begin) {
    const auto& exponents = begin.exponents;
    told.push_back("exponents");
    for (auto e : exponents) told.back() += " " + std::to_string(e);
  };
  auto conductor = system.spawn<Conductor>(std::move(spec));
  auto listener = system.spawn<Listener>(&told);
  caf::anon_send(conductor, actors::Wire{{listener}, conductor});
  caf::anon_send(conductor, SessionSays{BeginRun{4, 1, {40, -2, 7}}});
  scheduler.run();
  CHECK(told == std::vector<std::string>{"exponents 40 -2 7", "begin 4"});
  caf::anon_send(conductor, SessionSays{Go{0, 4}});
  caf::anon_send(conductor, SessionSays{CommitStep{4, 1, {{0.5, 1e-3, 9, true}}, {39, -2, 8}}});
  scheduler.run();
  CHECK(told.back() == "step 4");
  actors::Commit commit;
  std::int32_t exponents[3];
  std::memcpy(&commit, slot.data(), sizeof commit);
  std::memcpy(exponents, slot.data() + sizeof commit, sizeof exponents);
  CHECK(commit.update == 9);
  CHECK(commit.void_step);
  CHECK(std::vector<std::int32_t>(exponents, exponents + 3) == std::vector<std::int32_t>{39, -2, 8});
  REQUIRE(sent.empty());
  const CommitStep next{5, 1, {{0.5, 1e-3, 10, false}}, {39, -2, 8}};
  CommitStep few = next, beyond = next;
  few.exponents.pop_back();
  beyond.readers = 4;
  const std::vector<std::pair<ToWorker, std::string>> wrong = {
      {next, "commit of step 5, and the step has not begun"},
      {Go{0, 6}, "go to step 6 of program 0, and step 5 is due"},
      {Go{0, 5}, ""},
      {Go{0, 6}, ""},
      {Go{0, 7}, "go to step 7 of program 0, and step 7 is due, at most two ahead of 5 commits"},
      {Go{2, 5}, "go to step 5 of program 2, and the plan has no such program"},
      {Go{1, 5}, "go to step 5 of program 1, and it does not read version 5, or has begun on it"},
      {few, "commit of step 5 with 2 exponents of gradient sums, and the plan needs 3"},
      {beyond, "commit of step 5 with readers beyond program 1, and the plan has no such program"},
      {CommitStep{6, 1, {}, {1, 2, 3}}, "commit of step 6, and the commit of step 5 is due"},
      {BeginRun{6, 1, {40, -2, 7}}, "begin at step 6, and the run has begun"},
      {Feed{"prompt", 1, 5, 0, {}},
       "feed 'prompt', microbatch 0 of step 5 of program 1, and this place does not read it"}};
  for (const auto& [message, text] : wrong) {
    sent.clear();
    caf::anon_send(conductor, SessionSays{message});
    scheduler.run();
    CHECK(told.back() == "step 4");  // none is acted on
    CHECK(sent.size() == (text.empty() ? 0 : 1));
    if (sent.empty()) continue;
    const auto* failed = std::get_if<WorkerFailed>(&sent[0]);
    REQUIRE(failed);
    CHECK_MESSAGE(failed->status.message().find("the session says " + text) != std::string::npos,
                  failed->status.message());
  }
  for (const auto& actor : {conductor, listener}) caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  scheduler.run();
}

TEST_CASE(
    "SO-1 (commits) and SO-3 (other programs): a commit is refused until the place has closed its step, and until each "
    "program that reads its version has begun, once") {
  const auto answer = [](SessionOrder& order, const ToWorker& m) { return order.check(m).message(); };
  const std::string open = "this place has not closed the step";
  {
    SessionOrder order({.begun_as = {0, 1}, .closers = {1, 0}});
    CHECK(answer(order, BeginRun{4, 1, {}}) == "");
    for (const std::int64_t step : {4, 5}) {
      CHECK(answer(order, Go{0, step}) == "");
      const CommitStep commit{step, 1, {}, {}};
      CHECK(answer(order, commit) == "the session says commit of step " + std::to_string(step) + ", and " + open);
      order.closed(step);
      CHECK(answer(order, commit) == "");
    }
  }
  SessionOrder order({.begun_as = {0, 1}, .closers = {1, 0}});
  CHECK(answer(order, BeginRun{4, 3, {}, {0}}) ==
        "the session says begin at step 4 and wants parameter 0, and the plan trains no such parameter");
  CHECK(answer(order, BeginRun{4, 3, {}}) == "");
  for (const std::int64_t step : {4, 5}) {  // the first version is named by BeginRun, the second by a commit
    const std::string number = std::to_string(step), commit_of = "the session says commit of step " + number + ", and ";
    CHECK(answer(order, Go{0, step}) == "");
    const CommitStep commit{step, 3, {}, {}};
    CHECK(answer(order, commit) == commit_of + open);
    order.closed(step);
    CHECK(answer(order, commit) == commit_of + "a program that reads version " + number + " has not begun");
    CHECK(answer(order, Go{1, step}) == "");
    CHECK(answer(order, Go{1, step}) == "the session says go to step " + number +
                                            " of program 1, and it does not read version " + number +
                                            ", or has begun on it");
    CHECK(answer(order, commit) == "");
  }
}

TEST_CASE(
    "the conductor makes one vote of what actors tell of gradients, whichever tells first; the next vote begins with "
    "nothing of it") {
  SteppedConfig config;
  caf::actor_system system(config);
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  ConductorSpec spec;
  spec.order = {.begun_as = {0}, .closers = {1}};
  spec.fed = {false};
  spec.square_sums = 3;
  spec.peaks = 4;
  spec.busy_ns = std::make_shared<std::atomic<std::int64_t>>(0);
  std::vector<FromWorker> sent;
  spec.send = [&](FromWorker m) { sent.push_back(std::move(m)); };
  auto conductor = system.spawn<Conductor>(std::move(spec));
  const std::vector<actors::GradientPart> parts = {{0, 0, {{}, {1, 2}, {{1, 6}}}},
                                                   {0, 0, {{0.5}, {}, {}}},
                                                   {1, 0, {{0.25, 0.75}, {}, {}}},
                                                   {0, 2, {{}, {3, 4}, {{0, 5}}}}};
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < parts.size() && step < 2; ++i)
      caf::anon_send(conductor, parts[step == 0 ? i : parts.size() - 1 - i]);
    caf::anon_send(conductor, actors::StepClosed{"norm", 0, step});
    scheduler.run();
    REQUIRE(sent.size() == 1);
    const auto* vote = std::get_if<Closed>(&sent[0]);
    REQUIRE(vote);
    CHECK(vote->step == step);
    CHECK(vote->reports.empty());
    const actors::GradientReport& g = vote->gradients;
    CHECK(g.square_sums == (step < 2 ? std::vector<double>{0.5, 0.25, 0.75} : std::vector<double>{}));
    CHECK(g.peaks == (step < 2 ? std::vector<float>{1, 2, 3, 4} : std::vector<float>{}));
    CHECK(g.bad.size() == (step < 2 ? 2 : 0));
    for (const auto& [peak, microbatch] : g.bad) CHECK(microbatch == (peak == 1 ? 6 : 5));
    for (const auto& [peak, microbatch] : g.bad) CHECK((peak == 1 || peak == 2));
    sent.clear();
  }
  caf::anon_send_exit(conductor, caf::exit_reason::user_shutdown);
  scheduler.run();
}

TEST_CASE("a place without actors answers at once when it is asked what it waits for: it is not the one that hangs") {
  SteppedConfig config;
  caf::actor_system system(config);
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  ConductorSpec spec;
  spec.order = {.begun_as = {0}, .closers = {0}};
  std::vector<FromWorker> sent;
  spec.send = [&](FromWorker m) { sent.push_back(std::move(m)); };
  auto conductor = system.spawn<Conductor>(std::move(spec));
  caf::anon_send(conductor, actors::Wire{{}, conductor});
  caf::anon_send(conductor, SessionSays{ExplainAll{}});
  scheduler.run();
  REQUIRE(sent.size() == 1);
  CHECK(std::holds_alternative<Explained>(sent[0]));
  caf::anon_send_exit(conductor, caf::exit_reason::user_shutdown);
  scheduler.run();
}
