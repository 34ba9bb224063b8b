// Shared areas: memory of a place that tenants (channels, staging memory) take in turn because the plan's edges never
// let two of them be live at the same time (runtime/place/lifetimes.h). Which tenants share is in the plan; the
// verifier proves each pair again. The state area (parameters, moments, op state) is another: the beginning of a pool,
// of which no tenant has a part (runtime/place/local_plan.h).
#include <algorithm>
#include <optional>

#include "runtime/place/lifetimes.h"
#include "runtime/place/local_plan.h"
#include "runtime/planner/passes.h"

namespace troupe::runtime {

namespace {

/// Tenants that share an area, by shift.
struct Area {
  struct Shift {
    std::int64_t bytes = 0;
    std::vector<std::size_t> tenants;
  };
  std::int64_t bytes = 0;
  std::vector<Shift> shifts;
};

/// A tenant that gets a shift of an area, and the fields of the plan that say which.
struct PlannedTenant {
  Tenant tenant;
  std::int64_t bytes = 0;
  std::vector<std::pair<std::int32_t*, std::int32_t*>> fields;  // area, shift
};

/// The shift of an area that a tenant may join: it excludes all of the other shifts, and there is room. None: -1.
std::int32_t shift_for(const Area& area, const PlannedTenant& who, const std::vector<PlannedTenant>& all,
                       const Lifetimes& lifetimes) {
  std::int32_t beside = -1;  // a shift that it does not exclude
  for (std::size_t s = 0; s < area.shifts.size(); ++s) {
    const auto& tenants = area.shifts[s].tenants;
    if (std::all_of(tenants.begin(), tenants.end(),
                    [&](std::size_t t) { return lifetimes.exclude(all[t].tenant, who.tenant); }))
      continue;
    if (beside >= 0) return -1;
    beside = static_cast<std::int32_t>(s);
  }
  const auto room = [&](const Area::Shift& s) { return s.bytes + who.bytes <= area.bytes; };
  if (beside >= 0) return room(area.shifts[static_cast<std::size_t>(beside)]) ? beside : -1;
  const auto with_room = std::find_if(area.shifts.begin(), area.shifts.end(), room);
  if (with_room == area.shifts.end() && who.bytes > area.bytes) return -1;
  return static_cast<std::int32_t>(with_room - area.shifts.begin());
}

}  // namespace

Status share_areas(PlanDraft& draft) {
  for (auto& role : draft.plan.roles) {
    TROUPE_ASSIGN(const LocalPlan local, local_plan(draft.plan, draft.plan.meshes[role.stage].ranks[0]));
    const Lifetimes lifetimes(draft.plan, role);
    std::vector<PlannedTenant> tenants;
    const auto add = [&](std::optional<Tenant> tenant, std::int64_t bytes) -> PlannedTenant* {
      if (!tenant || bytes == 0) return nullptr;
      tenants.push_back({*std::move(tenant), bytes, {}});
      return &tenants.back();
    };
    for (const auto& c : local.channels)
      if (auto* made = add(lifetimes.channel(c.channel), c.slot_bytes * c.slots))
        made->fields.emplace_back(&role.channels[c.channel].area, &role.channels[c.channel].shift);
    std::vector<std::int64_t> staging(role.actors.size(), 0);
    for (const auto& a : local.actors) staging[a.actor] = a.staging_bytes * a.staging_slots;
    for (const auto& users : staging_users(role)) {
      std::int64_t most = 0;
      for (auto a : users) most = std::max(most, staging[a]);
      if (auto* made = add(lifetimes.staging(users), most))
        for (auto a : users) made->fields.emplace_back(&role.actors[a].staging_area, &role.actors[a].staging_shift);
    }
    // The largest first: what comes later finds room in what is there, and no area grows.
    std::stable_sort(tenants.begin(), tenants.end(),
                     [](const PlannedTenant& a, const PlannedTenant& b) { return a.bytes > b.bytes; });
    std::vector<Area> areas;
    for (std::size_t t = 0; t < tenants.size(); ++t) {
      std::int32_t shift = -1;
      auto area = std::find_if(areas.begin(), areas.end(), [&](const Area& a) {
        return (shift = shift_for(a, tenants[t], tenants, lifetimes)) >= 0;
      });
      if (area == areas.end()) {
        area = areas.insert(areas.end(), Area{tenants[t].bytes, {}});
        shift = 0;
      }
      area->shifts.resize(std::max(area->shifts.size(), static_cast<std::size_t>(shift) + 1));
      area->shifts[static_cast<std::size_t>(shift)].bytes += tenants[t].bytes;
      area->shifts[static_cast<std::size_t>(shift)].tenants.push_back(t);
    }
    std::erase_if(areas, [](const Area& a) { return a.shifts.size() == 1; });  // one tenant alone
    for (std::size_t a = 0; a < areas.size(); ++a)
      for (std::size_t s = 0; s < areas[a].shifts.size(); ++s)
        for (auto t : areas[a].shifts[s].tenants)
          for (const auto& [in_area, in_shift] : tenants[t].fields)
            *in_area = static_cast<std::int32_t>(a), *in_shift = static_cast<std::int32_t>(s);
  }
  return {};
}

}  // namespace troupe::runtime
