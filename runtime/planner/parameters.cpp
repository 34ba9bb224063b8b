// Parameters: groups that one actor of each stage updates, their slot, and where norms and updates find the gradients.
#include <algorithm>

#include "runtime/planner/group_pass.h"

namespace troupe::runtime {

Optimizers make_parameters(PlanDraft& draft, const Segments& segments, const Edges& edges,
                           const ParameterScheme& scheme) {
  // Of those that ops make the groups are their own: kept apart, AdamW's are what they are without them.
  enum Makes : std::uint8_t { adamw, ops_by_rows, ops_of_whole, kept };
  // unit, mesh, program that trains it, what makes its next version
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, Makes>, ParameterGroup> groups;
  for (std::size_t p = 0; p < draft.low.params.size(); ++p) {
    const auto& param = draft.low.params[p];
    const std::int32_t mesh = draft.plan.tensors[param.tensor].mesh;
    const std::int32_t program = draft.plan.params[p].program;
    const LoweredUpdate* by = param.update < 0 ? nullptr : &draft.low.updates[param.update];
    const std::int32_t unit = by ? by->unit : param.unit;
    const Makes makes = !by ? adamw : draft.plan.params[p].kept ? kept : by->by_rows ? ops_by_rows : ops_of_whole;
    ParameterGroup& group = groups[{unit, mesh, program, makes}];
    group.whole = makes == ops_of_whole;
    group.kept = makes == kept;
    if (by && std::count(group.updates.begin(), group.updates.end(), by) == 0) group.updates.push_back(by);
    group.program = program < 0 ? draft.plan.step_program() : program;
    group.params.push_back(p);
    group.mesh = mesh;
    group.stages = param.stages;
    group.name = draft.prefix(group.program) + draft.graph.units()[unit] + (param.stages.size() > 1 ? ".tied" : "") +
                 (draft.plan.trains() && program < 0 ? ".fixed" : "") +
                 (makes == adamw         ? ""
                  : makes == ops_by_rows ? ".by_ops"
                  : makes == kept        ? ".kept"
                                         : ".by_ops.whole");
  }
  Optimizers out;
  std::vector<GroupPass> passes;
  for (const auto& [key, group] : groups) passes.emplace_back(draft, segments, edges, scheme, group, out).run();
  for (GroupPass& pass : passes) pass.finish();
  return out;
}

GroupPass::GroupPass(PlanDraft& draft, const Segments& segments, const Edges& edges, const ParameterScheme& scheme,
                     const ParameterGroup& group, Optimizers& out)
    : draft_(draft), segments_(segments), edges_(edges), group_(group), out_(out),
      trained_(draft.plan.params[group.params[0]].program >= 0),
      divided_(draft.plan.meshes[group.mesh].axis_size("dp") > 1), keeps_version_(trained_ && scheme.keeps_version),
      scheme_(!trained_ || !divided_ || group.whole ? ParameterScheme{}
              : group.kept                          ? ParameterScheme{.updates_shares = true, .stores_shares = true}
                                                    : scheme) {}

void GroupPass::run() {
  if (scheme_.updates_shares) make_shares();
  std::map<std::int32_t, std::set<ActorRef>> readers;
  if (group_.kept) {
    readers = read_shares();
  } else if (scheme_.stores_shares) {
    readers = gather_for_uses();
  } else {
    for (auto p : group_.params)
      for (const auto& r : edges_.readers[low().params[p].tensor]) readers[r.role].insert(r);
  }
  // The segments that make gradients read the exponents of their sums.
  for (auto p : group_.params)
    for (auto t : low().params[p].grads)
      for (const auto& [role, writer] : edges_.writer[t]) readers[role].insert(writer);
  std::int32_t exponents = -1;
  if (trained_) {
    PlanTensor e = plan().tensors[low().params[group_.params[0]].tensor];
    e.dtype = DType::i32;
    e.shape.assign(1, static_cast<std::int64_t>(group_.params.size()));
    e.sbp.assign(e.sbp.size(), Sbp::B());
    exponents = draft_.add_tensor(e, group_.name + ".exponents");
  }
  for (auto s : group_.stages) add_optimizer(s, readers[s], exponents);
  if (!trained_) return;
  if (scheme_.updates_shares && !scheme_.stores_shares) gather_updated();
  lead_gradients();
}

void GroupPass::finish() {
  if (group_.updates.empty()) return;
  Ports ports;
  for (const LoweredUpdate* update : group_.updates)
    for (const LoweredUpdateNode& n : update->nodes) {
      if (n.kind == UpdateNode::Kind::handed) hand_over(n, ports);
      if (n.kind == UpdateNode::Kind::kept) keep(n, ports);
    }
  add_update_ops(ports);
}

void GroupPass::add_optimizer(std::int32_t s, std::set<ActorRef> readers, std::int32_t exponents) {
  PlanActor u;
  u.kind = PlanActor::Kind::update;
  u.name = group_.name + ".update";
  u.program = group_.program;
  u.rate = Rate::step;
  u.priority = draft_.priority(update_priority, 0);
  u.run = run_of(u.program, update_run);
  update_[s] = draft_.add_actor(s, u, 0);
  PlanActor d;
  d.kind = PlanActor::Kind::digest;
  d.name = group_.name + ".digest";
  d.program = plan().program("digest");
  d.rate = Rate::step;
  d.priority = draft_.priority(other_priority, 0);
  d.run = run_of(d.program, forward_run);
  readers.insert(draft_.add_actor(s, d, 0));
  const bool any_gradient = std::any_of(group_.params.begin(), group_.params.end(),
                                        [&](std::size_t p) { return !low().params[p].grads.empty(); });
  if (any_gradient) {
    PlanActor n = u;
    n.kind = PlanActor::Kind::norm;
    n.name = group_.name + ".norm";
    norm_[s] = draft_.add_actor(s, n, 0);
    readers.insert(norm_[s]);
  }
  // The version: every reader of every program. Where the next one is written into another slot, the update is one more
  // reader: when all others have read this version, the free slot is still the one before it. Else it is written in
  // place.
  if (keeps_version_) readers.insert(update_[s]);
  PlanChannel c;
  c.kind = PlanChannel::Kind::parameter;
  c.name = group_.name + ".params";
  c.rate = Rate::step;
  c.initial = true;
  c.slots = keeps_version_ ? 2 : 1;
  for (auto p : group_.params) draft_.put(c, plan().params[p].stored());
  if (trained_) draft_.put(c, exponents);
  draft_.connect(std::move(c), update_[s], {readers.begin(), readers.end()});
}

void GroupPass::lead_gradients() {
  // Gradients that the same segments make go the same way. Sums by rounds are one for each use; other sums add up all
  // uses of a parameter.
  std::map<std::pair<std::vector<Ends>, bool>, Uses> ways;
  for (auto p : group_.params) {
    const auto& grads = low().params[p].grads;
    std::vector<Ends> writers;
    for (auto t : grads) writers.push_back(edges_.writer[t]);
    const bool summed = std::any_of(grads.begin(), grads.end(),
                                    [&](auto t) { return summed_on_model_axis(plan().tensors[t]); });
    for (std::size_t u = 0; u < writers.size(); ++u)
      ways[{scheme_.sums_shares ? std::vector{writers[u]} : writers, summed}].push_back({p, grads[u]});
  }
  Found for_norm, for_update;
  for (const auto& [way, uses] : ways) {
    const bool summed = way.second;
    if (scheme_.sums_shares) {
      reduce_by_rounds(uses, for_norm);
      for_update = for_norm;
    } else if (divided_ || summed) {
      reduce(uses, for_norm, for_update);
    } else {
      for (auto s : group_.stages) connect_gradients(s, uses, {norm_.at(s), update_.at(s)});
      for (const auto& [p, t] : uses)
        for (const auto& [s, w] : edges_.writer[t]) for_norm[{s, t}] = for_update[{s, t}] = *draft_.home(s, t);
    }
  }
  for (auto s : group_.stages) {
    if (norm_.count(s) > 0) add_param_refs(s, norm_.at(s), for_norm);
    add_param_refs(s, update_.at(s), for_update);
  }
}

void GroupPass::add_param_refs(std::int32_t s, ActorRef who, const Found& found) {
  for (std::size_t i = 0; i < group_.params.size(); ++i) {
    if (who != update_.at(s) && low().params[group_.params[i]].grads.empty()) continue;
    PlanParamRef ref;
    ref.param = static_cast<std::int32_t>(group_.params[i]);
    ref.index = static_cast<std::int32_t>(i);
    for (auto t : low().params[group_.params[i]].grads) {
      const auto [channel, index] = found.at({s, t});
      const auto& in = draft_.at(who).in;
      const auto port = std::find(in.begin(), in.end(), channel) - in.begin();
      const PlanParamRef::Use use{static_cast<std::int32_t>(port), index};
      // One sum may have several uses.
      if (std::find(ref.grads.begin(), ref.grads.end(), use) == ref.grads.end()) ref.grads.push_back(use);
    }
    draft_.at(who).params.push_back(std::move(ref));
  }
}

}  // namespace troupe::runtime
