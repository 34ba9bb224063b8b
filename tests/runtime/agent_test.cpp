// What the agent of a machine keeps for the next job.
#include "runtime/agents/agent.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "runtime/plan/plan_io.h"
#include "tests/runtime/kept_cases.h"

using namespace troupe;
using namespace troupe::runtime;
using namespace mlp;

namespace {

/// Processes that do nothing, with memory that is named after the place and how often it was renewed.
class Memories final : public PlaceProcesses {
 public:
  std::set<std::string> named;  // memory that is not forgotten
  Expected<std::int64_t> start(PlaceId place, const std::vector<std::string>&, bool) override {
    slots_[place].memory = next(place);
    return std::int64_t{1};
  }
  Expected<std::int64_t> restart(PlaceId, bool) override { return std::int64_t{1}; }
  Status post(PlaceId, JobGeneration, SharedBytes) override { return {}; }
  void kill(PlaceId) override {}
  void dismiss(PlaceId) override {}
  std::int64_t number(PlaceId) override { return 1; }
  std::optional<ProcessEnd::Kind> how_it_ended(PlaceId) override { return ProcessEnd::Kind::ordinary; }
  std::string memory_name(PlaceId place) override { return slots_.at(place).memory; }
  void look_at_memory(PlaceId, const std::function<void(std::span<std::byte>)>&) override {}
  Status renew_memory(PlaceId place) override {
    Slot& slot = slots_.at(place);
    if (slot.home.empty()) slot.home = slot.memory;
    else named.erase(slot.memory);
    slot.memory = next(place);
    return {};
  }
  void forget_memory(PlaceId place, bool used) override {
    Slot& slot = slots_.at(place);
    named.erase(std::exchange(slot.home, ""));
    if (!used) named.erase(std::exchange(slot.memory, ""));
  }
  Status end_all(int, int) override { return {}; }
  Status finish(int, int) override { return {}; }

 private:
  struct Slot {
    std::string memory, home;
    int renewed = 0;
  };
  std::string next(PlaceId place) {
    const std::string name = std::to_string(static_cast<int>(place)) + "." + std::to_string(slots_[place].renewed++);
    named.insert(name);
    return name;
  }
  std::map<PlaceId, Slot> slots_;
};

}  // namespace

TEST_CASE("an agent keeps the memory of the plan that it tells of, and a later job that renews it finds it") {
  Memories* processes = nullptr;
  Agent agent([](FromAgent) {},
              [&](ProcessObserver&) {
                auto made = std::make_unique<Memories>();
                processes = made.get();
                return made;
              });
  const Plan plan = kept_plan({{2}});
  const PlaceId place{0};
  const auto tell = [&](std::uint32_t generation, bool renews, bool forgets = false) {
    TellPlan order{{7, generation}, {}, {}, renews, "run", {}, forgets};
    order.widths = {2};
    order.plan = std::make_shared<const std::vector<std::byte>>(encode(ToWorker(PlanBytes{write_plan(plan)})));
    order.hellos.emplace_back(place, Hello{});
    agent.take(order);
  };
  agent.take(StartPlace{place, {}, true});
  tell(1, false);
  tell(2, true);
  CHECK(processes->named == std::set<std::string>{"0.0", "0.1"});  // the plan has not settled
  const Kept kept = agent.keep(0, 0);
  REQUIRE(kept.places.size() == 1);
  CHECK(kept.places[0].place == place);
  CHECK(kept.plan == "run");
  CHECK(kept.widths == StageWidths{2});
  CHECK(processes->named == std::set<std::string>{"0.1"});
  agent.take(RestartPlace{{7, 3}, place, false});
  tell(4, true);
  CHECK(processes->named == std::set<std::string>{"0.1", "0.2"});  // that it has told of is where the state lies
  const PlaceId other{1};
  agent.take(StartPlace{other, {}, true});
  agent.take(SettledPlaces{{place, other}});
  CHECK(processes->named == std::set<std::string>{"0.2", "1.0"});
  tell(5, true, true);  // it takes a rank: what it had is nothing
  CHECK(processes->named == std::set<std::string>{"0.3", "1.0"});
  tell(6, true);  // for another plan: its state lies where it was told to put it
  CHECK(processes->named == std::set<std::string>{"0.3", "0.4", "1.0"});
}
