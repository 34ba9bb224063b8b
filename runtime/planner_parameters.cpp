// Parameters: groups that one actor updates, their gradients' way through accumulators and reductions.
#include <algorithm>

#include "runtime/planner.h"

namespace troupe::runtime {

Status Planner::make_parameters() {
  std::map<std::tuple<std::int32_t, std::int32_t, bool>, Group> groups;   // unit, mesh, trained
  for (std::size_t p = 0; p < low_.params.size(); ++p) {
    const auto& param = low_.params[p];
    Group& group = groups[{param.unit, plan_.tensors[param.tensor].mesh, !param.grads.empty()}];
    group.params.push_back(p);
    group.mesh = plan_.tensors[param.tensor].mesh;
    group.stages = param.stages;
    group.name = g_.units()[param.unit] + (param.stages.size() > 1 ? ".tied" : "") + (plan_.trains && param.grads.empty() ? ".fixed" : "");
  }
  for (auto& [key, group] : groups) TROUPE_TRY(make_group(group));
  return {};
}

Status Planner::make_group(const Group& group) {
  const bool trains = plan_.trains && !low_.params[group.params[0]].grads.empty();
  const Mesh mesh = plan_.meshes[group.mesh];
  const bool reduces = mesh.axis_size("dp") > 1;

  std::map<std::int32_t, Where> update, norm;
  for (auto s : group.stages) {
    PlanActor u;
    u.kind = PlanActor::Kind::update;
    u.name = group.name + ".update";
    u.rate = Rate::step;
    u.stream = "compute";
    u.priority = update_priority;
    u.run = 3;
    update[s] = add_actor(s, u);
    // The parameter slot: one slot, every reader of every program, the update its in-place writer.
    PlanChannel c;
    c.kind = PlanChannel::Kind::parameter;
    c.name = group.name + ".params";
    c.rate = Rate::step;
    c.initial = true;
    std::set<Where> readers;
    for (auto p : group.params) {
      put(c, low_.params[p].tensor);
      for (const auto& r : readers_[low_.params[p].tensor])
        if (r.role == s) readers.insert(r);
    }
    PlanActor d;
    d.kind = PlanActor::Kind::digest;
    d.name = group.name + ".digest";
    d.program = plan_.program("digest");
    d.rate = Rate::step;
    d.stream = "compute";
    d.priority = other_priority;
    d.run = static_cast<std::uint32_t>(d.program * 4);
    readers.insert(add_actor(s, d));
    const auto id = connect(std::move(c), update[s], {readers.begin(), readers.end()});
    const auto& made = plan_.roles[s].channels[id];
    for (std::size_t i = 0; i < made.tensors.size(); ++i) param_place_[{s, made.tensors[i]}] = {id, static_cast<std::int32_t>(i)};
    if (trains) {
      PlanActor n = u;
      n.kind = PlanActor::Kind::norm;
      n.name = group.name + ".norm";
      norm[s] = add_actor(s, n);
    }
  }
  if (!trains) return {};

  // Gradients by the segment that makes them: one accumulator channel each.
  std::map<Where, std::vector<std::pair<std::size_t, std::int32_t>>> made_by;   // -> (param, use tensor)
  for (auto p : group.params)
    for (auto t : low_.params[p].grads) {
      TROUPE_TRY(check_gradient(plan_.tensors[t], plan_.tensors[low_.params[p].tensor]));
      made_by[writer_[t]].push_back({p, t});
    }
  Found for_norm, for_update;
  for (const auto& [writer, uses] : made_by) {
    PlanChannel c;
    c.kind = PlanChannel::Kind::gradient;
    c.name = at(writer).name + ".grads" + (at(writer).name.rfind(group.name + ".", 0) == 0 ? "" : ".of." + group.name);
    c.rate = Rate::step;
    for (const auto& [p, t] : uses) put(c, t);
    if (!reduces) {
      const std::int32_t s = writer.role;
      const auto id = connect(std::move(c), writer, {norm[s], update[s]});
      for (std::size_t i = 0; i < uses.size(); ++i) {
        place_[uses[i].second] = {id, static_cast<std::int32_t>(i)};
        for_norm[{s, uses[i].second}] = for_update[{s, uses[i].second}] = {id, static_cast<std::int32_t>(i)};
      }
      continue;
    }
    reduce(group, mesh, writer, std::move(c), uses, norm, update, for_norm, for_update);
  }
  for (auto s : group.stages) {
    add_param_refs(group, s, norm[s], for_norm);
    add_param_refs(group, s, update[s], for_update);
  }
  return {};
}

Status Planner::check_gradient(const PlanTensor& grad, const PlanTensor& param) const {
  const Mesh& mesh = plan_.meshes[grad.mesh];
  for (std::size_t a = 0; a < mesh.axes.size(); ++a)
    if (static_cast<int>(a) != dp_axis(mesh) && mesh.axes[a].size > 1 && !(grad.sbp[a] == param.sbp[a]))
      return invalid("the gradient '" + grad.name + "' is " + to_string(grad.sbp[a]) + " on axis " + mesh.axes[a].name +
                     " and its parameter '" + param.name + "' is " + to_string(param.sbp[a]) +
                     ": a reduction along that axis is not in this version; use " + mesh.axes[a].name + "=1");
  return {};
}

void Planner::reduce(const Group& group, const Mesh& mesh, Where writer, PlanChannel grads,
            const std::vector<std::pair<std::size_t, std::int32_t>>& uses, std::map<std::int32_t, Where>& norm,
            std::map<std::int32_t, Where>& update, Found& for_norm, Found& for_update) {
  PlanExchange scatter, gather;
  scatter.name = grads.name + ".reduce_scatter";
  gather.name = grads.name + ".all_gather";
  scatter.rate = gather.rate = Rate::step;
  std::vector<std::int32_t> shares, wholes;
  for (const auto& [p, t] : uses) {
    PlanTensor share = plan_.tensors[low_.params[p].tensor];
    share.name = plan_.tensors[t].name + ".share";
    share.sbp[dp_axis(mesh)] = Sbp::S(0);
    PlanTensor whole = plan_.tensors[low_.params[p].tensor];
    whole.name = plan_.tensors[t].name + ".sum";
    plan_.tensors.push_back(share);
    plan_.tensors.push_back(whole);
    low_.producer.insert(low_.producer.end(), 2, -1);
    shares.push_back(static_cast<std::int32_t>(plan_.tensors.size()) - 2);
    wholes.push_back(static_cast<std::int32_t>(plan_.tensors.size()) - 1);
    scatter.moves.push_back({t, shares.back()});
    gather.moves.push_back({shares.back(), wholes.back()});
  }
  std::map<std::int32_t, Where> scatter_at, gather_at;
  const std::int32_t first = group.stages.front();
  scatter_at[first] = add_exchange(scatter, Rate::step, first, true);
  gather_at[first] = add_exchange(gather, Rate::step, first, true);
  for (auto s : group.stages) {
    if (s == first) continue;
    scatter_at[s] = add_exchange_end(scatter_at[first], s);
    gather_at[s] = add_exchange_end(gather_at[first], s);
  }
  // The update reads the unreduced sums too: they stay until the commit, so that a failure finds them.
  const auto id = connect(std::move(grads), writer, {scatter_at[writer.role], update[writer.role]});
  for (std::size_t i = 0; i < uses.size(); ++i) place_[uses[i].second] = {id, static_cast<std::int32_t>(i)};
  for (auto s : group.stages) {
    PlanChannel share, whole;
    share.kind = whole.kind = PlanChannel::Kind::reduced;
    share.rate = whole.rate = Rate::step;
    share.name = scatter.name;
    whole.name = gather.name;
    for (auto t : shares) put(share, t);
    for (auto t : wholes) put(whole, t);
    const auto share_id = connect(std::move(share), scatter_at[s], {norm[s], gather_at[s]});
    const auto whole_id = connect(std::move(whole), gather_at[s], {update[s]});
    for (std::size_t i = 0; i < uses.size(); ++i) {
      for_norm[{s, uses[i].second}] = {share_id, static_cast<std::int32_t>(i)};
      for_update[{s, uses[i].second}] = {whole_id, static_cast<std::int32_t>(i)};
    }
  }
}

void Planner::add_param_refs(const Group& group, std::int32_t s, Where who, const Found& found) {
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    PlanParamRef ref;
    ref.param = static_cast<std::int32_t>(group.params[i]);
    ref.index = static_cast<std::int32_t>(i);
    for (auto t : low_.params[group.params[i]].grads) {
      const auto [channel, index] = found.at({s, t});
      const auto& in = at(who).in;
      const auto port = std::find(in.begin(), in.end(), channel) - in.begin();
      ref.grads.push_back({static_cast<std::int32_t>(port), index});
    }
    at(who).params.push_back(std::move(ref));
  }
}

}  // namespace troupe::runtime
