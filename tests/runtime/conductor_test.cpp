// What the conductor of a worker writes into control channels.
#include <doctest/doctest.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/send.hpp>
#include <cstring>

#include "runtime/worker/conductor.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

struct SteppedConfig : caf::actor_system_config {
  SteppedConfig() { set("scheduler.policy", caf::atom("testing")); }
};

/// Notes what a conductor tells the actors of its place.
class Listener final : public caf::event_based_actor {
 public:
  Listener(caf::actor_config& config, std::vector<std::string>* told) : caf::event_based_actor(config), told_(told) { actors::set_quiet_handlers(*this, [](const Status&) {}); }
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

TEST_CASE("the conductor hands exponents on: those of BeginRun before any actor begins, those of a commit behind it in the commit's slot; a number of them that is not the plan's fails the worker") {
  constexpr std::size_t bytes = sizeof(actors::Commit) + 3 * sizeof(std::int32_t);
  std::vector<std::byte> slot(bytes);
  std::vector<std::string> told;
  SteppedConfig config;
  caf::actor_system system(config);
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  ConductorSpec spec;
  spec.channels.emplace(0, ControlChannel{PlanChannel::Kind::commit, "commit", 0,
                                          actors::ControlPort("commit", 1, {{0, 0}}, {slot.data(), static_cast<std::int64_t>(bytes)})});
  spec.exponents = 3;
  std::vector<FromWorker> sent;
  spec.send = [&](FromWorker m) { sent.push_back(std::move(m)); };
  spec.on_begin = [&](const std::vector<std::int32_t>& exponents) {
    told.push_back("exponents");
    for (auto e : exponents) told.back() += " " + std::to_string(e);
  };
  auto conductor = system.spawn<Conductor>(std::move(spec));
  auto listener = system.spawn<Listener>(&told);
  caf::anon_send(conductor, actors::Wire{{listener}, conductor});
  caf::anon_send(conductor, SessionSays{BeginRun{4, 1, {40, -2, 7}}});
  scheduler.run();
  CHECK(told == std::vector<std::string>{"exponents 40 -2 7", "begin 4"});
  caf::anon_send(conductor, SessionSays{CommitStep{4, 1, {0.5, 1e-3, 9, true}, {39, -2, 8}}});
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
  caf::anon_send(conductor, SessionSays{CommitStep{5, 1, {0.5, 1e-3, 10, false}, {39, -2}}});
  caf::anon_send(conductor, SessionSays{BeginRun{6, 1, {40, -2, 7, 7}}});
  scheduler.run();
  CHECK(told.back() == "step 4");   // neither is acted on
  REQUIRE(sent.size() == 2);
  for (const auto& [index, text] : {std::pair{0, "the commit of step 5 carries 2 exponents"}, {1, "the begin at step 6 carries 4 exponents"}}) {
    const auto* failed = std::get_if<WorkerFailed>(&sent[static_cast<std::size_t>(index)]);
    REQUIRE(failed);
    CHECK(failed->status.message().find(text) != std::string::npos);
  }
  for (const auto& actor : {conductor, listener}) caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  scheduler.run();
}
