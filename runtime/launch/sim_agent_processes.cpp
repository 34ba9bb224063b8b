#include "runtime/launch/sim_agent_processes.h"

#include <fmt/format.h>

#include <utility>

#include "devices/base/check.h"

namespace troupe::runtime {

Expected<std::int64_t> AgentsProcesses::start(PlaceId place, const std::vector<std::string>&, bool) {
  const Rank end = static_cast<Rank>(world_.owner_.size());
  ASSERT(end < MachineWorld::ends_most, end);
  world_.owner_.emplace_back(machine_, world_.machines_[machine_].number);
  Slot& slot = slots_[place] = {};
  slot.end = end;
  slot.memory = next_name(slot);
  world_.start_again(end, false);
  return std::int64_t{end};
}

Expected<std::int64_t> AgentsProcesses::restart(PlaceId place, bool afresh) {
  Slot& slot = slots_.at(place);
  if (world_.places_[slot.end].lives()) world_.violates("a place has two processes that write its memory");
  ++world_.run_.restarts;
  slot.ended.reset();
  slot.untold.reset();
  if (afresh || slot.memory.empty()) slot.memory = next_name(slot);
  world_.start_again(slot.end, afresh);
  return std::int64_t{slot.end};
}

Status AgentsProcesses::post(PlaceId to, JobGeneration of, SharedBytes message) {
  world_.send(slots_.at(to).end, {of, *message});
  return {};
}

void AgentsProcesses::kill(PlaceId place) { world_.kill(slots_.at(place).end, false); }

void AgentsProcesses::look_at_memory(PlaceId place, const std::function<void(std::span<std::byte>)>& look) {
  const SimPlace& p = world_.places_[slots_.at(place).end];
  if (p.memory && !slots_.at(place).memory.empty()) look({p.memory->data(), p.memory->size()});
}

Status AgentsProcesses::renew_memory(PlaceId place) {
  Slot& slot = slots_.at(place);
  if (slot.home.empty()) slot.home = slot.memory;
  slot.memory = next_name(slot);
  world_.SimProcesses::renew_memory(slot.end);
  return {};
}

void AgentsProcesses::forget_memory(PlaceId place, bool used) {
  Slot& slot = slots_.at(place);
  SimPlace& p = world_.places_[slot.end];
  slot.home.clear();
  if (p.home) world_.dropped_.push_back(std::move(p.home));
  p.home_guards.reset();
  if (used) return;
  slot.memory.clear();
  if (p.memory) world_.dropped_.push_back(std::move(p.memory));
}

Status AgentsProcesses::end_all(int, int) {
  for (auto& [place, slot] : slots_) {
    if (world_.places_[slot.end].lives() || !slot.ended) world_.end_at_once(slot.end, false);
    if (!slot.ended) slot.ended = ProcessEnd::Kind::ordinary;
    slot.untold.reset();
  }
  return {};
}

void AgentsProcesses::reaped(Rank end, ProcessEnd how) {
  Slot& slot = slots_.at(place_of(end));
  slot.ended = how.kind;
  slot.untold = std::move(how);
}

void AgentsProcesses::tell_ends() {
  for (auto& [place, slot] : slots_)
    if (auto how = std::exchange(slot.untold, std::nullopt))
      observer_.ended(place, {how->kind, Status(Code::unavailable, fmt::format("worker {} was killed",
                                                                               static_cast<std::int32_t>(place)))});
}

void AgentsProcesses::end_with_agent(bool silently) {
  for (auto& [place, slot] : slots_) world_.end_at_once(slot.end, silently);
}

Buffer* AgentsProcesses::memory_named(const std::string& name) const {
  for (const auto& [place, slot] : slots_) {
    const SimPlace& p = world_.places_[slot.end];
    if (slot.home == name) return p.home.get();
    if (slot.memory == name) return p.memory.get();
  }
  return nullptr;
}

}  // namespace troupe::runtime
