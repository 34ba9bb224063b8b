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
  const bool reduces = plan_.meshes[group.mesh].axis_size("dp") > 1;
  const bool shared = zero_ > 0 && trains && reduces;
  if (shared) make_shares(group);
  std::map<std::int32_t, std::set<Where>> readers;
  if (shared && zero_ == 3) readers = gather_for_uses(group);
  else
    for (auto p : group.params)
      for (const auto& r : readers_[low_.params[p].tensor]) readers[r.role].insert(r);

  Ends update, norm;
  for (auto s : group.stages) {
    PlanActor u;
    u.kind = PlanActor::Kind::update;
    u.name = group.name + ".update";
    u.rate = Rate::step;
    u.stream = "compute";
    u.priority = priority(update_priority, 0);
    u.run = run_of(0, update_run);
    update[s] = add_actor(s, u, 0);
    // The parameter slot: one slot, every reader of every program, the update its in-place writer.
    PlanChannel c;
    c.kind = PlanChannel::Kind::parameter;
    c.name = group.name + ".params";
    c.rate = Rate::step;
    c.initial = true;
    for (auto p : group.params) put(c, plan_.params[p].stored());
    PlanActor d;
    d.kind = PlanActor::Kind::digest;
    d.name = group.name + ".digest";
    d.program = plan_.program("digest");
    d.rate = Rate::step;
    d.stream = "compute";
    d.priority = priority(other_priority, 0);
    d.run = run_of(d.program, forward_run);
    readers[s].insert(add_actor(s, d, 0));
    const auto id = connect(std::move(c), update[s], {readers[s].begin(), readers[s].end()});
    const auto& made = plan_.roles[s].channels[id];
    for (std::size_t i = 0; i < made.tensors.size(); ++i) place_[{s, made.tensors[i]}] = {id, static_cast<std::int32_t>(i)};
    if (trains) {
      PlanActor n = u;
      n.kind = PlanActor::Kind::norm;
      n.name = group.name + ".norm";
      norm[s] = add_actor(s, n, 0);
    }
  }
  if (!trains) return {};
  if (shared && zero_ < 3) gather_updated(group, update);

  // Gradients by the segment that makes them: one accumulator channel each.
  std::map<std::pair<Ends, bool>, std::vector<std::pair<std::size_t, std::int32_t>>> made_by;   // -> (param, use tensor)
  for (auto p : group.params)
    for (auto t : low_.params[p].grads)
      made_by[{writer_[t], summed_on_model_axis(plan_.tensors[t])}].push_back({p, t});
  Found for_norm, for_update;
  for (const auto& [key, uses] : made_by) {
    const auto& [writers, summed] = key;
    PlanChannel c;
    c.kind = PlanChannel::Kind::gradient;
    const Where writer = writers.begin()->second;
    c.name = at(writer).name + ".grads" + (at(writer).name.rfind(group.name + ".", 0) == 0 ? "" : ".of." + group.name) + (summed ? ".sums" : "");
    c.rate = Rate::step;
    for (const auto& [p, t] : uses) put(c, t);
    if (!reduces && !summed) {
      for (const auto& [s, w] : writers) {
        const auto id = connect(c, w, {norm[s], update[s]});
        for (std::int32_t i = 0; i < static_cast<std::int32_t>(uses.size()); ++i)
          place_[{s, uses[i].second}] = for_norm[{s, uses[i].second}] = for_update[{s, uses[i].second}] = {id, i};
      }
      continue;
    }
    if (reduces && zero_ >= 2) {
      reduce_by_lanes(group, writers, c, uses, norm, update, for_norm);
      for_update = for_norm;
    } else {
      reduce(group, writers, c, uses, norm, update, for_norm, for_update);
    }
  }
  for (auto s : group.stages) {
    add_param_refs(group, s, norm[s], for_norm);
    add_param_refs(group, s, update[s], for_update);
  }
  return {};
}

bool Planner::summed_on_model_axis(const PlanTensor& grad) const {
  const Mesh& mesh = plan_.meshes[grad.mesh];
  for (std::size_t a = 0; a < mesh.axes.size(); ++a)
    if (static_cast<int>(a) != dp_axis(mesh) && mesh.axes[a].size > 1 && grad.sbp[a].is_partial()) return true;
  return false;
}

PlanTensor Planner::reduced_tensor(std::size_t param, std::int32_t grad, bool share, bool partial) const {
  PlanTensor t = plan_.tensors[low_.params[param].tensor];
  const Mesh& mesh = plan_.meshes[t.mesh];
  for (std::size_t a = 0; a < mesh.axes.size(); ++a)
    if (static_cast<int>(a) == dp_axis(mesh)) t.sbp[a] = share ? Sbp::S(0) : Sbp::B();
    else if (partial && plan_.tensors[grad].sbp[a].is_partial()) t.sbp[a] = Sbp::P();
  return t;
}

Ends Planner::everywhere(const Group& group, const std::string& name, const std::vector<std::int32_t>& from,
                         const std::vector<std::int32_t>& to) {
  PlanExchange x;
  x.name = name;
  x.rate = Rate::step;
  for (std::size_t i = 0; i < from.size(); ++i) x.moves.push_back({from[i], to[i]});
  return add_exchange_ends(std::move(x), group.stages, 0, true);
}

std::int32_t Planner::add_sums(PlanChannel::Kind kind, const std::vector<std::int32_t>& tensors, Where from,
                               const std::vector<Where>& readers) {
  PlanChannel c;
  c.kind = kind;
  c.rate = Rate::step;
  c.name = at(from).name;
  for (auto t : tensors) put(c, t);
  return connect(std::move(c), from, readers);
}

void Planner::reduce(const Group& group, const Ends& writers, const PlanChannel& grads,
                     const std::vector<std::pair<std::size_t, std::int32_t>>& uses, Ends& norm, Ends& update, Found& for_norm,
                     Found& for_update) {
  // Three layouts of each use's gradient after its lanes: a share along dp, still a sum on the model axes where it
  // was made as one; the share with that sum done; the whole.
  std::vector<std::int32_t> grads_of, shares, sums, wholes;
  const bool summed = summed_on_model_axis(plan_.tensors[uses.front().second]);
  const bool shared = plan_.params[uses.front().first].share >= 0;   // then nobody needs the whole
  for (const auto& [p, t] : uses) {
    const std::string name = plan_.tensors[t].name;
    grads_of.push_back(t);
    shares.push_back(add_tensor(reduced_tensor(p, t, true, true), name + ".share"));
    sums.push_back(summed ? add_tensor(reduced_tensor(p, t, true, false), name + ".share.sum") : shares.back());
    if (!shared) wholes.push_back(add_tensor(reduced_tensor(p, t, false, false), name + ".sum"));
  }
  auto scatter = everywhere(group, grads.name + ".reduce_scatter", grads_of, shares);
  auto sum = summed ? everywhere(group, grads.name + ".all_reduce", shares, sums) : scatter;
  auto gather = shared ? update : everywhere(group, grads.name + ".all_gather", sums, wholes);

  // The update reads the unreduced sums too: they stay until the commit, so that a failure finds them.
  for (const auto& [s, writer] : writers) {
    const auto id = connect(grads, writer, {scatter[s], update[s]});
    for (std::size_t i = 0; i < uses.size(); ++i) place_[{s, uses[i].second}] = {id, static_cast<std::int32_t>(i)};
  }
  using Kind = PlanChannel::Kind;
  for (auto s : group.stages) {
    if (summed) add_sums(Kind::reduced, shares, scatter[s], {sum[s]});
    const auto sum_id = add_sums(Kind::reduced, sums, sum[s], {norm[s], gather[s]});
    const auto whole_id = shared ? sum_id : add_sums(Kind::reduced, wholes, gather[s], {update[s]});
    for (std::size_t i = 0; i < uses.size(); ++i) {
      for_norm[{s, uses[i].second}] = {sum_id, static_cast<std::int32_t>(i)};
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
