// The processes of one simulated agent (sim_machines.h), as its Agent has them. Internal to the simulation.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "devices/base/check.h"
#include "runtime/launch/sim_machine_world.h"

namespace troupe::runtime {

/// The processes of one agent.
class AgentsProcesses final : public PlaceProcesses {
 public:
  AgentsProcesses(MachineWorld& world, std::size_t machine, ProcessObserver& observer)
      : world_(world), machine_(machine), observer_(observer) {}

  Expected<std::int64_t> start(PlaceId place, const std::vector<std::string>&, bool) override;
  Expected<std::int64_t> restart(PlaceId place, bool afresh) override;
  Status post(PlaceId to, JobGeneration of, SharedBytes message) override;
  void kill(PlaceId place) override;
  void dismiss(PlaceId place) override { kill(place); }
  std::int64_t number(PlaceId place) override { return slots_.at(place).end; }
  std::optional<ProcessEnd::Kind> how_it_ended(PlaceId place) override { return slots_.at(place).ended; }
  std::string memory_name(PlaceId place) override { return slots_.at(place).memory; }
  void look_at_memory(PlaceId place, const std::function<void(std::span<std::byte>)>& look) override;
  Status renew_memory(PlaceId place) override;
  void forget_memory(PlaceId place, bool used) override;
  Status end_all(int, int) override;
  Status finish(int, int) override { return end_all(0, 0); }
  void tell_ends() override;

  /// Of the simulation.
  void heard(Rank end, ControlFrame frame) { observer_.heard(place_of(end), std::move(frame)); }
  void reaped(Rank end, ProcessEnd how);
  /// All of them end with the agent.
  void end_with_agent(bool silently);
  Buffer* memory_named(const std::string& name) const;
  std::vector<Rank> ends() const {
    std::vector<Rank> out;
    for (const auto& [place, slot] : slots_) out.push_back(slot.end);
    return out;
  }

 private:
  struct Slot {
    Rank end = 0;
    std::string memory, home;  // names
    std::int64_t names = 0;    // that it has had
    std::optional<ProcessEnd::Kind> ended;
    std::optional<ProcessEnd> untold;
  };
  PlaceId place_of(Rank end) const {
    for (const auto& [place, slot] : slots_)
      if (slot.end == end) return place;
    ASSERT(false, end);
    return {};
  }
  std::string next_name(Slot& slot) { return fmt::format("{}.{}", slot.end, ++slot.names); }

  MachineWorld& world_;
  const std::size_t machine_;
  ProcessObserver& observer_;
  std::map<PlaceId, Slot> slots_;
};

}  // namespace troupe::runtime
