#include "runtime/worker/kept_state.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "actors/version_word.h"

namespace troupe::runtime {

std::vector<HeldVersion> held_versions(const Plan& plan, const LocalPlan& local, std::byte* pool) {
  std::vector<HeldVersion> out;
  for (const LocalChannel& c : local.channels) {
    if (c.version_offset < 0) continue;
    for (std::int32_t slot = 0; slot < c.slots; ++slot) {
      std::byte* at = pool + c.offset + slot * c.slot_bytes;
      if (const auto version = actors::VersionWord(at + c.version_offset).version(); version >= 0)
        out.push_back({plan.roles[local.stage].channels[c.channel].name,
                       slot,
                       version,
                       {at, static_cast<std::size_t>(c.version_offset)}});
    }
  }
  return out;
}

std::optional<std::vector<std::int64_t>> whole_versions(const Plan& plan, const LocalPlan& local, std::byte* pool) {
  const auto groups = std::count_if(local.channels.begin(), local.channels.end(),
                                    [](const LocalChannel& c) { return c.version_offset >= 0; });
  if (groups == 0) return {};
  std::map<std::int64_t, std::int64_t> held;  // groups, by version
  for (const HeldVersion& h : held_versions(plan, local, pool)) ++held[h.version];
  std::vector<std::int64_t> whole;
  for (const auto& [version, count] : held)
    if (count == groups) whole.push_back(version);
  return whole;
}

bool holds(const Plan& plan, const LocalPlan& local, std::byte* pool, std::int64_t version) {
  const auto whole = whole_versions(plan, local, pool);
  return !whole || std::find(whole->begin(), whole->end(), version) != whole->end();
}

void clear_versions(const LocalPlan& local, std::byte* pool) {
  for (const LocalChannel& c : local.channels)
    for (std::int32_t slot = 0; c.version_offset >= 0 && slot < c.slots; ++slot)
      actors::VersionWord(pool + c.offset + slot * c.slot_bytes + c.version_offset).clear();
}

void forget_versions(const LocalPlan& local, std::byte* pool) {
  std::memset(pool, 0, static_cast<std::size_t>(local.state_area_bytes));
}

}  // namespace troupe::runtime
