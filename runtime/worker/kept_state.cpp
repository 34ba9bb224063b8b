#include "runtime/worker/kept_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "actors/version_word.h"

namespace troupe::runtime {

namespace {

/// Slots of a group of parameters, each with a version word behind its state.
struct KeptGroup {
  std::string name;
  std::int64_t offset = 0, slot_bytes = 0, version_offset = 0;
  std::int32_t slots = 0;
};

std::vector<KeptGroup> kept_groups(const Plan& plan, const LocalPlan& local) {
  const PlanRole& role = plan.roles[static_cast<std::size_t>(local.stage)];
  std::vector<KeptGroup> groups;
  for (const LocalChannel& c : local.channels)
    if (c.version_offset >= 0)
      groups.push_back({role.channels[c.channel].name, c.offset, c.slot_bytes, c.version_offset, c.slots});
  for (const LocalActor& a : local.actors)
    if (!a.copied.empty())
      groups.push_back(
          {role.actors[a.actor].name, a.copies.offset, a.copies.slot_bytes, a.copies.version_offset, copy_slots});
  return groups;
}

}  // namespace

std::vector<HeldVersion> held_versions(const Plan& plan, const LocalPlan& local, std::byte* kept) {
  std::vector<HeldVersion> out;
  for (const KeptGroup& g : kept_groups(plan, local))
    for (std::int32_t slot = 0; slot < g.slots; ++slot) {
      std::byte* at = kept + g.offset + slot * g.slot_bytes;
      if (const auto version = actors::VersionWord(at + g.version_offset).version(); version >= 0)
        out.push_back({g.name, slot, version, {at, static_cast<std::size_t>(g.version_offset)}});
    }
  return out;
}

std::optional<std::vector<std::int64_t>> whole_versions(const Plan& plan, const LocalPlan& local, std::byte* kept) {
  const auto groups = std::ssize(kept_groups(plan, local));
  if (groups == 0) return {};
  std::map<std::int64_t, std::set<std::string>> held;  // groups, by version
  for (const HeldVersion& h : held_versions(plan, local, kept)) held[h.version].insert(h.group);
  std::vector<std::int64_t> whole;
  for (const auto& [version, names] : held)
    if (std::ssize(names) == groups) whole.push_back(version);
  return whole;
}

bool holds(const Plan& plan, const LocalPlan& local, std::byte* kept, std::int64_t version) {
  const auto whole = whole_versions(plan, local, kept);
  return !whole || std::find(whole->begin(), whole->end(), version) != whole->end();
}

void clear_versions(const Plan& plan, const LocalPlan& local, std::byte* kept) {
  for (const KeptGroup& g : kept_groups(plan, local))
    for (std::int32_t slot = 0; slot < g.slots; ++slot)
      actors::VersionWord(kept + g.offset + slot * g.slot_bytes + g.version_offset).clear();
}

void forget_versions(const Plan& plan, const LocalPlan& local, std::byte* kept) {
  clear_versions(plan, local, kept);  // first: no word is true of what is half zero
  std::memset(kept, 0, static_cast<std::size_t>(local.kept_bytes()));
}

}  // namespace troupe::runtime
