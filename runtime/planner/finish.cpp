// What can be said of an actor only when all channels are there: its cost, whether it closes a step, what it reads.
#include <algorithm>
#include <map>

#include "runtime/place/saved_parts.h"
#include "runtime/plan/actor_traits.h"
#include "runtime/planner/passes.h"

namespace troupe::runtime {

namespace {

double bytes_of(const PlanRole& role, const std::vector<std::int32_t>& channels) {
  double bytes = 0;
  for (auto c : channels) bytes += static_cast<double>(role.channels[c].bytes);
  return bytes;
}

double norm_seconds(const Plan& plan, const PlanRole& role, const PlanActor& a) {
  double bytes = 0;
  for (auto c : a.in)
    if (role.channels[c].kind != PlanChannel::Kind::parameter) bytes += static_cast<double>(role.channels[c].bytes);
  return plan.costs.kernel_s("square_sums", 0, bytes);
}

/// Of AdamW; what ops make has its own cost. 0 where nothing is trained. A channel of parameters has as many f32 values
/// as the update has elements.
double update_seconds(const Plan& plan, const PlanRole& role, const PlanActor& a) {
  if (std::all_of(a.params.begin(), a.params.end(), [&](const auto& ref) { return plan.params[ref.param].by_ops; }))
    return 0;
  const bool of_sums = std::any_of(a.in.begin(), a.in.end(), [&](std::int32_t c) {
    const auto& tensors = role.channels[c].tensors;
    return !tensors.empty() && plan.tensors[tensors[0]].dtype == DType::sum64;
  });
  double bytes = bytes_of(role, a.out);
  for (const auto& ref : a.params)
    if (const PlanParam& p = plan.params[ref.param]; p.by_ops)
      bytes -= static_cast<double>(aligned(plan.layout(p.stored(), 0).bytes_at(0)));
  bytes *= static_cast<double>(kernels::AdamW::update_bytes(size_of(of_sums ? DType::sum64 : DType::f32))) / 4;
  if (a.gathers())
    bytes /= static_cast<double>(plan.meshes[plan.tensors[plan.params[a.params[0].param].tensor].mesh].axis_size("dp"));
  return plan.costs.kernel_s("adamw", 0, bytes);
}

/// Bytes that the first place of a role writes of a group into a checkpoint. Along dp no place writes more; along model
/// axes all write about as much of all groups together.
double saved_bytes(const Plan& plan, const SavedParts& saved, const PlanRole& role, const PlanActor& snapshot) {
  std::int64_t bytes = 0;
  for (const auto& part : saved.of(plan.meshes[role.stage].ranks[0], snapshot)) {
    const PlanTensor& t = plan.tensors[plan.params[part.param].tensor];
    const std::int64_t moments = part.trained ? kernels::AdamW::state_values() * size_of(DType::f32) : 0;
    bytes += part.extent.elements() * (size_of(t.dtype) + moments);
  }
  return static_cast<double>(bytes);
}

/// Seconds of one act. Those of segments are their ops' (fill_operands), those of exchanges lie in the exchange.
double seconds_of(const Plan& plan, const SavedParts& saved, const PlanRole& role, const PlanActor& a) {
  switch (a.kind) {
    case PlanActor::Kind::norm: return norm_seconds(plan, role, a);
    case PlanActor::Kind::update: return a.cost_s + update_seconds(plan, role, a);
    case PlanActor::Kind::digest: return plan.costs.kernel_s("digest", 0, bytes_of(role, a.in));
    // read and written
    case PlanActor::Kind::copy:
    case PlanActor::Kind::snapshot: return plan.costs.kernel_s("snapshot", 0, 2 * saved_bytes(plan, saved, role, a));
    case PlanActor::Kind::writer: {
      // the places of a node write at the same time
      const double writers = plan.costs.most_on_node(plan.workers());
      return saved_bytes(plan, saved, role, role.actors[role.channels[a.in[0]].writer]) * writers /
             plan.costs.disk_bytes_per_s;
    }
    case PlanActor::Kind::segment:
    case PlanActor::Kind::user:
    case PlanActor::Kind::exchange: break;
  }
  return a.cost_s;
}

/// A step of a program is over at a place when every actor is done whose outputs no actor of the program there reads.
bool closes_step(const PlanRole& role, const PlanActor& a) {
  bool closes = traits(a.kind).closes_step;
  for (auto c : a.out)
    for (const auto& r : role.channels[c].readers)
      if (role.actors[r.actor].program == a.program && role.channels[c].passes_on()) closes = false;
  return closes;
}

/// The parameters of an actor that reads a version of them. `param_of`: by tensor, the parameter that is stored as it.
void name_params(const std::map<std::int32_t, std::int32_t>& param_of, const PlanRole& role, PlanActor& a) {
  if (traits(a.kind).params != ActorTraits::Params::version) return;
  for (const auto& t : role.channels[a.in[0]].tensors)
    if (const auto p = param_of.find(t); p != param_of.end())
      a.params.push_back({p->second, static_cast<std::int32_t>(a.params.size()), {}});
}

}  // namespace

void finish_actors(PlanDraft& draft) {
  std::map<std::int32_t, std::int32_t> param_of;
  for (std::size_t p = 0; p < draft.plan.params.size(); ++p)
    param_of.emplace(draft.plan.params[p].stored(), static_cast<std::int32_t>(p));
  for (auto& role : draft.plan.roles)
    for (auto& a : role.actors) name_params(param_of, role, a);
  const SavedParts saved(draft.plan);
  for (auto& role : draft.plan.roles)
    for (auto& a : role.actors) {
      a.cost_s = seconds_of(draft.plan, saved, role, a);
      a.closes_step = closes_step(role, a);
    }
}

}  // namespace troupe::runtime
