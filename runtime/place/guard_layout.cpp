#include "runtime/place/guard_layout.h"

#include <algorithm>
#include <map>

#include "actors/version_word.h"
#include "devices/base/check.h"
#include "runtime/place/saved_parts.h"
#include "runtime/place/state_places.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t part_alignment = 64, slot_alignment = 4096;

std::int64_t round_up(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

GuardedPart guarded_part(const Plan& plan, const SavedParts& saved, Rank rank) {
  GuardedPart out;
  std::int64_t end = 0;
  for (std::size_t p = 0; p < plan.params.size(); ++p) {
    const auto part = saved.of(rank, static_cast<std::int32_t>(p));
    if (!part) continue;
    for (const StatePart kind : state_parts) {
      if (!part->trained && kind != StatePart::parameter) continue;
      end = round_up(end, part_alignment);
      out.parts.push_back({part->param, kind, part->extent, end});
      end += part->extent.elements() * item_bytes(plan, plan.params[p], kind);
    }
  }
  if (out.parts.empty()) return out;
  out.version_offset = round_up(end, part_alignment);
  out.slot_bytes = round_up(out.version_offset + actors::VersionWord::bytes, slot_alignment);
  return out;
}

}  // namespace

GuardedPart guarded_part(const Plan& plan, Rank rank) { return guarded_part(plan, SavedParts(plan), rank); }

GuardLayout::GuardLayout(const Plan& plan, std::span<const std::int32_t> machines)
    : guards_(machines.size(), -1), kept_(machines.size()) {
  REQUIRE(std::ssize(machines) == plan.workers(), machines.size(), plan.workers());
  const SavedParts saved(plan);
  std::map<std::int32_t, std::vector<Rank>> by_machine;
  for (Rank r = 0; r < plan.workers(); ++r) {
    parts_.push_back(guarded_part(plan, saved, r));
    by_machine[machines[static_cast<std::size_t>(r)]].push_back(r);
    kept_[static_cast<std::size_t>(r)].push_back(r);
  }
  if (by_machine.size() < 2) return;
  for (auto at = by_machine.begin(); at != by_machine.end(); ++at) {
    const auto& next = std::next(at) == by_machine.end() ? by_machine.begin()->second : std::next(at)->second;
    for (std::size_t i = 0; i < at->second.size(); ++i) {
      const Rank rank = at->second[i], guard = next[i % next.size()];
      guards_[static_cast<std::size_t>(rank)] = guard;
      kept_[static_cast<std::size_t>(guard)].push_back(rank);
    }
  }
}

std::int64_t GuardLayout::offset(Rank keeper, Rank of) const {
  std::int64_t offset = 0;
  for (const Rank rank : kept_by(keeper)) {
    if (rank == of) return offset;
    offset += guard_slots * part(rank).slot_bytes;
  }
  ASSERT(false, keeper, of);
  return 0;
}

std::int64_t GuardLayout::bytes(Rank rank) const {
  std::int64_t bytes = 0;
  for (const Rank of : kept_by(rank)) bytes += guard_slots * part(of).slot_bytes;
  return bytes;
}

std::vector<Rank> peers_with_guards(const Plan& plan, const LocalPlan& local, const GuardRule& rule) {
  std::vector<Rank> peers = peers_of(local);
  if (!rule.on()) return peers;
  const GuardLayout layout(plan, rule.machines);
  peers.push_back(layout.guard_of(local.rank));
  for (const Rank rank : layout.kept_by(local.rank)) peers.push_back(rank);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  std::erase_if(peers, [&](Rank r) { return r < 0 || r == local.rank; });
  return peers;
}

bool needs_guards(const Plan& plan, std::span<const std::int32_t> machines) {
  if (std::all_of(machines.begin(), machines.end(), [&](auto m) { return m == machines.front(); })) return false;
  struct Held {
    Extent extent;
    std::int32_t machine = 0;  // the first that has it
    bool twice = false;        // another one has it, too
  };
  for (const PlanParam& param : plan.params)
    for (const StatePart part : state_parts) {
      if (part != StatePart::parameter && !param.has_moments()) continue;
      std::vector<Held> held;
      for (Rank r = 0; r < plan.workers(); ++r) {
        Extent extent = extent_of(plan, param, part, r);
        if (extent.empty()) continue;
        const std::int32_t machine = machines[static_cast<std::size_t>(r)];
        const auto it = std::find_if(held.begin(), held.end(), [&](const Held& h) { return h.extent == extent; });
        if (it == held.end()) held.push_back({std::move(extent), machine});
        else it->twice |= it->machine != machine;
      }
      if (!std::all_of(held.begin(), held.end(), [](const Held& h) { return h.twice; })) return true;
    }
  return false;
}

}  // namespace troupe::runtime
