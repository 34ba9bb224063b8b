#include "runtime/place/state_places.h"

#include <algorithm>

namespace troupe::runtime {

std::vector<StatePlace> state_places(const Plan& plan, const LocalPlan& local) {
  std::vector<StatePlace> places(plan.params.size());
  const PlanRole& role = plan.roles[local.stage];
  for (const LocalActor& a : local.actors) {
    const PlanActor& actor = role.actors[a.actor];
    if (actor.kind != PlanActor::Kind::update) continue;
    const std::int32_t channel = a.out[0];
    const PlanChannel& c = role.channels[local.channels[channel].channel];
    for (std::size_t p = 0; p < plan.params.size(); ++p) {
      const auto it = std::find(c.tensors.begin(), c.tensors.end(), plan.params[p].stored());
      if (it == c.tensors.end()) continue;
      places[p].channel = channel;
      places[p].param = c.offsets[static_cast<std::size_t>(it - c.tensors.begin())];
    }
    std::int64_t end = local.channels[channel].moments_offset;
    const auto offsets = moments_offsets(plan, local.rank, actor, end);
    for (std::size_t i = 0; i < offsets.size(); ++i)
      places[static_cast<std::size_t>(actor.params[i].param)].moments = offsets[i];
  }
  return places;
}

std::vector<bool> trained_params(const Plan& plan) {
  std::vector<bool> trained(plan.params.size(), false);
  for (const PlanRole& role : plan.roles)
    for (const PlanActor& a : role.actors)
      if (a.kind == PlanActor::Kind::update)
        for (const auto& ref : a.params)
          trained[static_cast<std::size_t>(ref.param)] = !plan.params[static_cast<std::size_t>(ref.param)].by_ops;
  return trained;
}

std::int32_t tensor_of(const PlanParam& param, StatePart part) {
  if (part == StatePart::parameter) return param.stored();
  return param.share >= 0 ? param.share : param.tensor;
}

std::int64_t item_bytes(const Plan& plan, const PlanParam& param, StatePart part) {
  return size_of(part == StatePart::parameter ? plan.tensors[param.tensor].dtype : DType::f32);
}

Extent extent_of(const Plan& plan, const PlanParam& param, StatePart part, Rank rank) {
  const std::int32_t tensor = tensor_of(param, part);
  if (plan.meshes[plan.tensors[tensor].mesh].find(rank) < 0) return {{{0, 0}}};
  return plan.extent(tensor, rank);
}

std::int64_t offset_of(const StatePlace& place, StatePart part, std::int64_t elements) {
  if (place.channel < 0) return -1;
  if (part == StatePart::parameter) return place.param;
  if (place.moments < 0) return -1;
  return place.moments + (part == StatePart::second_moment ? elements * size_of(DType::f32) : 0);
}

}  // namespace troupe::runtime
