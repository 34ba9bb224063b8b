// Shared areas: tenants of two shifts are never live at the same time, by the plan's edges alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/place/lifetimes.h"
#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

class AreaCheck {
 public:
  AreaCheck(const Plan& plan, std::int32_t stage)
      : role_(plan.roles[stage]), where_(fmt::format("stage {}: ", stage)), lifetimes_(plan, role_) {}

  Status run() {
    for (std::size_t i = 0; i < role_.channels.size(); ++i) {
      const PlanChannel& c = role_.channels[i];
      TROUPE_TRY(add(c.area, c.shift, "channel '" + c.name + "'",
                     [&] { return lifetimes_.channel(static_cast<std::int32_t>(i)); }));
    }
    for (const auto& users : staging_users(role_)) {
      const PlanActor& first = role_.actors[users.front()];
      for (auto a : users)
        if (const PlanActor& x = role_.actors[a];
            x.staging_area != first.staging_area || x.staging_shift != first.staging_shift)
          return invalid(where_ + "actors '" + first.name + "' and '" + x.name +
                         "' share a staging buffer, and name two places for it");
      TROUPE_TRY(add(first.staging_area, first.staging_shift, "the staging memory of '" + first.name + "'",
                     [&] { return lifetimes_.staging(users); }));
    }
    for (const auto& a : role_.actors)
      if (a.exchange < 0 && a.staging_area >= 0)
        return invalid(where_ + "actor '" + a.name + "' has staging memory in a shared area, and is no exchange");
    for (const auto& [area, shifts] : areas_)
      for (auto a = shifts.begin(); a != shifts.end(); ++a)
        for (auto b = std::next(a); b != shifts.end(); ++b) TROUPE_TRY(check_turns(area, a->second, b->second));
    return {};
  }

 private:
  template <class Make>
  Status add(std::int32_t area, std::int32_t shift, const std::string& what, Make&& make) {
    if (area == -1) return {};
    const std::optional<Tenant> tenant = make();
    if (!tenant || area < 0 || shift < 0)
      return invalid(where_ + what +
                     " is in a shared area, and nothing says when it is free: what is filled and read within each step "
                     "has such a place");
    areas_[area][shift].push_back(*tenant);
    return {};
  }

  Status check_turns(std::int32_t area, const std::vector<Tenant>& some, const std::vector<Tenant>& others) const {
    for (const Tenant& a : some)
      for (const Tenant& b : others)
        if (!lifetimes_.exclude(a, b))
          return invalid(fmt::format(
              "{}{} shares area {} with {}, and no edges of the plan keep one of them free while the other is in use",
              where_, a.name, area, b.name));
    return {};
  }

  const PlanRole& role_;
  const std::string where_;
  const Lifetimes lifetimes_;
  std::map<std::int32_t, std::map<std::int32_t, std::vector<Tenant>>> areas_;  // -> by shift
};

}  // namespace

Status check_areas(const Plan& plan, std::int32_t stage) { return AreaCheck(plan, stage).run(); }

}  // namespace troupe::runtime
