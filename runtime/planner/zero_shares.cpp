// ZeRO as layouts, and the gathers that make shares whole (Rajbhandari et al., 2020): S(0) along dp for the optimizer's
// state (1), for reduced gradients as well (2), for the parameters between their uses too (3).
#include "runtime/planner/group_pass.h"

namespace troupe::runtime {

namespace {

/// Most terms that a microbatch adds to an element of a gradient, at one place.
std::int64_t terms_of(const PlanDraft& draft, std::int32_t gradient) {
  const LoweredNode& n = draft.low.nodes[draft.low.producer[gradient]];
  const auto* def = draft.graph.ops().find(n.op);
  if (!def->terms) return 1;
  std::vector<TensorType> in;
  for (auto t : n.in) in.push_back({draft.plan.tensors[t].dtype, draft.plan.tensors[t].shape});
  return def->terms(in, n.attrs);
}

}  // namespace

ParameterScheme scheme_of(std::int32_t zero_stage, bool keeps_version) {
  return {zero_stage >= 1, zero_stage >= 2, zero_stage >= 3, keeps_version};
}

void settle_gradients(PlanDraft& draft, const ParameterScheme& scheme) {
  if (!scheme.sums_shares || !draft.plan.trains()) return;
  for (const auto& param : draft.low.params) {
    if (param.update >= 0 && !draft.low.updates[param.update].by_rows) continue;
    if (draft.plan.meshes[draft.plan.tensors[param.tensor].mesh].axis_size("dp") == 1) continue;
    for (auto t : param.grads) {
      draft.plan.tensors[t].rate = Rate::microbatch;
      // A microbatch's gradient that is one term travels as it is and is converted where it is added.
      if (terms_of(draft, t) == 1) draft.plan.tensors[t].dtype = DType::f32;
    }
  }
}

void GroupPass::make_shares() {
  for (auto p : group_.params) {
    if (const auto& param = low().params[p];
        param.update >= 0 && param.grads.empty() && elements(plan().tensors[param.tensor].shape) == 1)
      continue;  // a number that an update keeps: each dp coordinate has it
    PlanTensor share = plan().tensors[low().params[p].tensor];
    share.sbp[dp_axis(plan().meshes[share.mesh])] = Sbp::S(0);
    plan().params[p].share = draft_.add_tensor(share, share.name + ".share");
    // What no op of a microbatch reads is never needed whole.
    plan().params[p].stored_as_share = scheme_.stores_shares || edges_.readers[low().params[p].tensor].empty();
  }
  for (const LoweredUpdate* update : group_.updates)
    for (const auto& [tensor, sbp] : update->row_sbp)
      plan().tensors[tensor].sbp[dp_axis(plan().meshes[group_.mesh])] = sbp;
}

std::map<std::int32_t, std::set<ActorRef>> GroupPass::read_shares() {
  std::map<std::int32_t, std::set<ActorRef>> readers;
  for (auto p : group_.params)
    for (const ActorRef& r : edges_.readers[low().params[p].tensor]) {
      readers[r.role].insert(r);
      out_.gathered[{r, low().params[p].tensor}] = plan().params[p].stored();
    }
  return readers;
}

void GroupPass::gather_updated() {
  PlanExchange gather;
  gather.name = group_.name + ".all_gather";
  gather.program = group_.program;
  gather.rate = Rate::step;
  for (auto p : group_.params)
    if (plan().params[p].share >= 0 && !plan().params[p].stored_as_share)
      gather.moves.push_back({plan().params[p].share, low().params[p].tensor});
  if (gather.moves.empty()) return;
  for (const auto& [stage, where] : update_)
    draft_.at(where).exchange = static_cast<std::int32_t>(plan().exchanges.size());
  plan().exchanges.push_back(std::move(gather));
}

std::map<std::int32_t, std::set<ActorRef>> GroupPass::gather_for_uses() {
  struct Use {
    std::set<std::size_t> params;
    std::map<std::int32_t, std::set<ActorRef>> readers;  // by role
  };
  // program, backward, unit, mesh, node. The segments of a unit use what it gathers one after the other: node -1. A
  // user-defined actor may act long after them, so its gather is its own.
  std::map<std::tuple<std::int32_t, bool, std::int32_t, std::int32_t, std::int32_t>, Use> uses;
  std::map<std::int32_t, std::set<ActorRef>> holders;
  for (auto p : group_.params)
    for (const ActorRef& r : edges_.readers[low().params[p].tensor]) {
      if (plan().params[p].share < 0) {  // each dp coordinate has it
        holders[r.role].insert(r);
        continue;
      }
      const auto own = segments_.user_nodes.find(r);
      const std::int32_t user = own == segments_.user_nodes.end() ? -1 : own->second;
      const LoweredNode& n = low().nodes[user >= 0 ? user : segments_.nodes.at(r).front()];
      Use& use = uses[{n.program, draft_.at(r).backward(), n.unit, n.mesh, user}];
      use.params.insert(p);
      use.readers[r.role].insert(r);
    }
  for (const auto& [key, use] : uses) {
    const auto& [program, backward, unit, mesh, user] = key;
    const std::string& name = draft_.graph.units()[unit];
    PlanExchange x;
    if (user >= 0) x.name = low().nodes[user].name + ".gather.of." + group_.name;
    else
      x.name = draft_.prefix(program) + name + (backward ? ".bwd" : ".fwd") + ".gather" +
               (name == group_.name ? "" : ".of." + group_.name);
    x.program = program;
    x.rate = Rate::round;
    std::vector<std::int32_t> tensors;
    for (auto p : use.params) {
      PlanTensor t = plan().tensors[low().params[p].tensor];
      t.mesh = mesh;
      t.rate = Rate::round;
      tensors.push_back(draft_.add_tensor(t, t.name + ".gathered"));
      x.moves.push_back({plan().params[p].share, tensors.back()});
      for (const auto& [role, readers] : use.readers)
        for (const ActorRef& r : readers) out_.gathered[{r, low().params[p].tensor}] = tensors.back();
    }
    const auto virtual_stage = draft_.at(*use.readers.begin()->second.begin()).virtual_stage;
    for (const auto& [s, end] : draft_.add_exchange(std::move(x), group_.stages, virtual_stage, backward)) {
      holders[s].insert(end);
      if (!use.readers.count(s)) continue;  // this stage only has shares that another stage needs
      PlanChannel c;
      c.kind = PlanChannel::Kind::gathered;
      c.name = draft_.at(end).name;
      c.rate = Rate::round;
      for (auto t : tensors) draft_.put(c, t);
      const auto& readers = use.readers.at(s);
      draft_.connect(std::move(c), end, {readers.begin(), readers.end()});
    }
  }
  return holders;
}

}  // namespace troupe::runtime
