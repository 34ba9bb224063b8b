#include "runtime/simulate/area_watch.h"

#include <algorithm>

namespace troupe::runtime {

AreaWatch::AreaWatch(const PlanRole& role, const LocalPlan& local) {
  std::vector<std::int32_t> here(role.actors.size(), 0);
  for (const auto& l : local.actors) here[l.actor] = 1;
  for (const auto& l : local.actors) {
    const PlanActor& a = role.actors[l.actor];
    Ports ports;
    for (auto id : a.in) {
      const PlanChannel& c = role.channels[id];
      ports.in.push_back({c.area, c.shift, c.area >= 0 ? 1 : 0});
    }
    for (auto id : a.out) {
      const PlanChannel& c = role.channels[id];
      Use use{c.area, c.shift, 0};
      for (const auto& r : c.readers) use.count += c.area >= 0 ? here[r.actor] : 0;
      ports.out.push_back(use);
      // no reader: free when its writer is done
      if (c.area >= 0 && use.count == 0) ports.act.push_back({c.area, c.shift, 1});
    }
    if (a.staging_area >= 0 && l.staging_bytes > 0) ports.act.push_back({a.staging_area, a.staging_shift, 1});
    const auto used = [](const Use& u) { return u.count > 0; };
    ports.any = !ports.act.empty() || std::any_of(ports.in.begin(), ports.in.end(), used) ||
                std::any_of(ports.out.begin(), ports.out.end(), used);
    actors_.push_back(std::move(ports));
  }
}

AreaWatch::Uses AreaWatch::uses(std::int32_t actor, const actors::Act& act) const {
  const Ports& ports = actors_[static_cast<std::size_t>(actor)];
  if (!ports.any) return {};
  Uses out{ports.act, ports.act};
  for (std::size_t p = 0; p < act.out.size(); ++p)
    if (ports.out[p].count > 0 && act.out[p].first) out.begin.push_back(ports.out[p]);
  for (std::size_t p = 0; p < act.in.size(); ++p)
    if (ports.in[p].count > 0 && act.in[p].last) out.end.push_back(ports.in[p]);
  return out;
}

bool AreaWatch::begin(const std::vector<Use>& uses) {
  for (const Use& u : uses) {
    Live& live = areas_[u.area];
    if (live.count > 0 && live.shift != u.shift) return false;
    live.shift = u.shift;
    live.count += u.count;
  }
  return true;
}

void AreaWatch::end(const std::vector<Use>& uses) {
  for (const Use& u : uses) areas_[u.area].count -= u.count;
}

}  // namespace troupe::runtime
