#include "runtime/worker/state_pieces.h"

#include <cstring>
#include <map>
#include <string>

#include "runtime/place/guard_layout.h"
#include "runtime/place/state_places.h"
#include "runtime/worker/kept_state.h"

namespace troupe::runtime {

namespace {

/// By group: where the version lies.
using Groups = std::map<std::string, const std::byte*>;

void take_slots(const Plan& plan, const LocalPlan& local, const Groups& groups, StatePieces& out) {
  const auto places = state_places(plan, local);
  for (std::size_t p = 0; p < plan.params.size(); ++p) {
    if (places[p].channel < 0) continue;
    const auto& channel = local.channels[static_cast<std::size_t>(places[p].channel)];
    const auto group = groups.find(plan.roles[static_cast<std::size_t>(local.stage)].channels[channel.channel].name);
    for (const StatePart part : state_parts) {
      const Extent extent = extent_of(plan, plan.params[p], part, local.rank);
      const std::int64_t at = offset_of(places[p], part, extent.elements());
      if (at >= 0 && !extent.empty() && group != groups.end())
        out[p][static_cast<std::size_t>(part)] = {extent, group->second + at};
    }
  }
}

void take_copies(const Plan& plan, const LocalPlan& local, const Groups& groups, StatePieces& out) {
  for (const LocalActor& a : local.actors)
    for (const CopiedPart& part : a.copied)
      out[static_cast<std::size_t>(part.param)][static_cast<std::size_t>(part.part)] = {
          part.extent, groups.at(plan.roles[static_cast<std::size_t>(local.stage)].actors[a.actor].name) + part.offset};
}

}  // namespace

Expected<std::optional<StatePieces>> state_pieces(const Plan& plan, Rank rank, std::byte* kept, std::int64_t version) {
  TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, rank));
  if (!holds(plan, local, kept, version)) return std::optional<StatePieces>();
  Groups groups;
  for (const HeldVersion& held : held_versions(plan, local, kept))
    if (held.version == version) groups[held.group] = held.state.data();
  StatePieces pieces(plan.params.size());
  (plan.keeps_copies() ? take_copies : take_slots)(plan, local, groups, pieces);
  return std::optional(std::move(pieces));
}

Expected<std::optional<StatePieces>> guarded_pieces(const Plan& plan, Rank rank, const std::byte* slots,
                                                    std::int64_t version) {
  const GuardedPart part = guarded_part(plan, rank);
  StatePieces pieces(plan.params.size());
  if (part.parts.empty()) return std::optional(std::move(pieces));
  for (std::int32_t slot = 0; slot < guard_slots; ++slot) {
    const std::byte* at = slots + slot * part.slot_bytes;
    std::int64_t word = 0;  // VersionWord, of memory that is only read
    std::memcpy(&word, at + part.version_offset, sizeof word);
    if (word != version + 1) continue;
    for (const CopiedPart& p : part.parts)
      pieces[static_cast<std::size_t>(p.param)][static_cast<std::size_t>(p.part)] = {p.extent, at + p.offset};
    return std::optional(std::move(pieces));
  }
  return std::optional<StatePieces>();
}

}  // namespace troupe::runtime
