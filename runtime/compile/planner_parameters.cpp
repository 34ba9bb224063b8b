// Parameters: groups that one actor updates, their gradients' way through accumulators and reductions.
#include <algorithm>

#include "runtime/compile/planner.h"

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
  const bool divided = plan_.meshes[group.mesh].axis_size("dp") > 1;
  const bool shared = zero_ > 0 && trains && divided;
  if (shared) make_shares(group);
  std::map<std::int32_t, std::set<ActorRef>> readers;
  if (shared && zero_ == 3) readers = gather_for_uses(group);
  else
    for (auto p : group.params)
      for (const auto& r : readers_[low_.params[p].tensor]) readers[r.role].insert(r);
  // The segments that make gradients read the exponents of their sums.
  for (auto p : group.params)
    for (auto t : low_.params[p].grads)
      for (const auto& [role, writer] : writer_[t]) readers[role].insert(writer);
  std::int32_t exponents = -1;
  if (trains) {
    PlanTensor e = plan_.tensors[low_.params[group.params[0]].tensor];
    e.dtype = DType::i32;
    e.shape = {static_cast<std::int64_t>(group.params.size())};
    e.sbp.assign(e.sbp.size(), Sbp::B());
    exponents = add_tensor(e, group.name + ".exponents");
  }

  Ends update, norm;
  for (auto s : group.stages) {
    PlanActor u;
    u.kind = PlanActor::Kind::update;
    u.name = group.name + ".update";
    u.rate = Rate::step;
    u.priority = priority(update_priority, 0);
    u.run = run_of(0, update_run);
    update[s] = add_actor(s, u, 0);
    PlanActor d;
    d.kind = PlanActor::Kind::digest;
    d.name = group.name + ".digest";
    d.program = plan_.program("digest");
    d.rate = Rate::step;
    d.priority = priority(other_priority, 0);
    d.run = run_of(d.program, forward_run);
    readers[s].insert(add_actor(s, d, 0));
    if (trains) {
      PlanActor n = u;
      n.kind = PlanActor::Kind::norm;
      n.name = group.name + ".norm";
      norm[s] = add_actor(s, n, 0);
      readers[s].insert(norm[s]);
    }
    // The parameter slot: one slot, every reader of every program, the update its in-place writer.
    PlanChannel c;
    c.kind = PlanChannel::Kind::parameter;
    c.name = group.name + ".params";
    c.rate = Rate::step;
    c.initial = true;
    for (auto p : group.params) put(c, plan_.params[p].stored());
    if (trains) put(c, exponents);
    const auto id = connect(std::move(c), update[s], {readers[s].begin(), readers[s].end()});
    const auto& made = plan_.roles[s].channels[id];
    for (std::size_t i = 0; i < made.tensors.size(); ++i) place_[{s, made.tensors[i]}] = {id, static_cast<std::int32_t>(i)};
  }
  if (!trains) return {};
  if (shared && zero_ < 3) gather_updated(group, update);

  // Gradients that the same segments make go the same way. Sums by rounds are one for each use; other sums add up all
  // uses of a parameter.
  const bool by_rounds = divided && zero_ >= 2;
  std::map<std::pair<std::vector<Ends>, bool>, Uses> ways;
  for (auto p : group.params) {
    const auto& grads = low_.params[p].grads;
    std::vector<Ends> writers;
    for (auto t : grads) writers.push_back(writer_[t]);
    const bool summed = std::any_of(grads.begin(), grads.end(), [&](auto t) { return summed_on_model_axis(plan_.tensors[t]); });
    for (std::size_t u = 0; u < writers.size(); ++u) ways[{by_rounds ? std::vector{writers[u]} : writers, summed}].push_back({p, grads[u]});
  }
  Found for_norm, for_update;
  for (const auto& [way, uses] : ways) {
    const bool summed = way.second;
    if (by_rounds) {
      reduce_by_rounds(group, uses, norm, update, for_norm);
      for_update = for_norm;
    } else if (divided || summed) {
      reduce(group, uses, norm, update, for_norm, for_update);
    } else {
      for (auto s : group.stages) connect_gradients(group, s, uses, {norm[s], update[s]});
      for (const auto& [p, t] : uses)
        for (const auto& [s, w] : writer_[t]) for_norm[{s, t}] = for_update[{s, t}] = place_.at({s, t});
    }
  }
  for (auto s : group.stages) {
    add_param_refs(group, s, norm[s], for_norm);
    add_param_refs(group, s, update[s], for_update);
  }
  return {};
}

std::vector<std::int32_t> Planner::connect_gradients(const Group& group, std::int32_t s, const Uses& uses, const std::vector<ActorRef>& readers) {
  std::map<ActorRef, std::vector<std::int32_t>> made;   // by the segments of this stage
  for (const auto& [p, t] : uses)
    if (const auto it = writer_[t].find(s); it != writer_[t].end()) made[it->second].push_back(t);
  std::vector<std::int32_t> out;
  for (const auto& [writer, tensors] : made) {
    PlanChannel c;
    c.kind = PlanChannel::Kind::gradient;
    c.name = gradients_name(group, tensors[0]);
    c.rate = plan_.tensors[tensors[0]].rate;
    for (auto t : tensors) put(c, t);
    out.push_back(connect(std::move(c), writer, readers));
    for (std::size_t i = 0; i < tensors.size(); ++i) place_[{s, tensors[i]}] = {out.back(), static_cast<std::int32_t>(i)};
  }
  return out;
}

std::string Planner::gradients_name(const Group& group, std::int32_t gradient) {
  const ActorRef writer = writer_[gradient].begin()->second;
  return at(writer).name + ".grads" + (at(writer).name.rfind(group.name + ".", 0) == 0 ? "" : ".of." + group.name);
}

void Planner::read_parameters(const Group& group, ActorRef who) {
  const auto id = place_.at({who.role, plan_.params[group.params[0]].stored()}).first;
  plan_.roles[who.role].channels[id].readers.push_back({who.actor, static_cast<std::int32_t>(at(who).in.size())});
  at(who).in.push_back(id);
}

std::int64_t Planner::terms_of(std::int32_t gradient) const {
  const LoweredNode& n = low_.nodes[low_.producer[gradient]];
  const auto* def = g_.ops().find(n.op);
  if (!def->terms) return 1;
  std::vector<TensorType> in;
  for (auto t : n.in) in.push_back({plan_.tensors[t].dtype, plan_.tensors[t].shape});
  return def->terms(in, n.attrs);
}

bool Planner::summed_on_model_axis(const PlanTensor& grad) const {
  const Mesh& mesh = plan_.meshes[grad.mesh];
  for (std::size_t a = 0; a < mesh.axes.size(); ++a)
    if (static_cast<int>(a) != dp_axis(mesh) && mesh.axes[a].size > 1 && grad.sbp[a].is_partial()) return true;
  return false;
}

PlanTensor Planner::reduced_tensor(std::size_t param, bool share) const {
  PlanTensor t = plan_.tensors[low_.params[param].tensor];
  t.sbp[dp_axis(plan_.meshes[t.mesh])] = share ? Sbp::S(0) : Sbp::B();
  t.dtype = share ? DType::sum64 : DType::f32;
  t.gradient_of = static_cast<std::int32_t>(param);
  return t;
}

Ends Planner::everywhere(const Group& group, const std::string& name, Rate rate, const std::vector<std::int32_t>& from,
                         const std::vector<std::int32_t>& to) {
  PlanExchange x;
  x.name = name;
  x.rate = rate;
  for (std::size_t i = 0; i < from.size(); ++i) x.moves.push_back({from[i], to[i]});
  const auto virtual_stage = rate == Rate::round ? at(writer_[from[0]].begin()->second).virtual_stage : 0;
  auto ends = add_exchange_ends(std::move(x), group.stages, virtual_stage, true);
  // The slot has the exponents of the sums; its token has the step where a stage has no other input.
  for (const auto& [stage, end] : ends) read_parameters(group, end);
  return ends;
}

std::int32_t Planner::add_result(PlanChannel::Kind kind, const std::vector<std::int32_t>& tensors, ActorRef from, const std::vector<ActorRef>& readers) {
  PlanChannel c;
  c.kind = kind;
  c.rate = Rate::step;
  c.name = at(from).name;
  for (auto t : tensors) put(c, t);
  return connect(std::move(c), from, readers);
}

Ends Planner::reduce_shares(const Group& group, Rate rate, const Uses& uses, const std::vector<std::int32_t>& sum_of,
                           std::vector<std::int32_t>& shares, const std::function<std::vector<ActorRef>(std::int32_t)>& readers) {
  const std::string name = gradients_name(group, uses.front().second);
  const auto count = static_cast<std::size_t>(*std::max_element(sum_of.begin(), sum_of.end())) + 1;
  // A gradient that is a sum on model axes too is added along dp first, then along these axes: no exchange then has
  // more places than one line of the mesh along its axes.
  std::vector<std::int32_t> from, to, along_dp(count, -1);
  bool summed = false;
  for (std::size_t u = 0; u < uses.size(); ++u) {
    const auto [p, t] = uses[u];
    auto& sum = along_dp[static_cast<std::size_t>(sum_of[u])];
    if (sum < 0) sum = add_tensor(reduced_tensor(p, true), plan_.tensors[t].name + ".share");
    const Mesh& mesh = plan_.meshes[plan_.tensors[t].mesh];
    for (std::size_t a = 0; a < mesh.axes.size(); ++a)
      if (static_cast<int>(a) != dp_axis(mesh) && mesh.axes[a].size > 1 && plan_.tensors[t].sbp[a].is_partial()) plan_.tensors[sum].sbp[a] = Sbp::P(), summed = true;
    from.push_back(t);
    to.push_back(sum);
  }
  const Ends scatter = everywhere(group, name + ".reduce_scatter", rate, from, to);
  shares = along_dp;
  if (summed)
    for (std::size_t i = 0; i < count; ++i) {
      const auto u = static_cast<std::size_t>(std::find(sum_of.begin(), sum_of.end(), static_cast<std::int32_t>(i)) - sum_of.begin());
      shares[i] = add_tensor(reduced_tensor(uses[u].first, true), plan_.tensors[uses[u].second].name + ".share.sum");
    }
  const Ends whole = summed ? everywhere(group, name + ".all_reduce", Rate::step, along_dp, shares) : scatter;
  for (auto s : group.stages) {
    connect_gradients(group, s, uses, {scatter.at(s)});
    if (summed) add_result(PlanChannel::Kind::reduced, along_dp, scatter.at(s), {whole.at(s)});
    add_result(PlanChannel::Kind::reduced, shares, whole.at(s), readers(s));
  }
  return whole;
}

void Planner::reduce(const Group& group, const Uses& uses, const Ends& norm, const Ends& update, Found& for_norm, Found& for_update) {
  std::vector<std::size_t> params;       // all uses of a parameter are added into one sum
  std::vector<std::int32_t> sum_of, shares, wholes;
  for (const auto& [p, t] : uses) {
    const auto at = std::find(params.begin(), params.end(), p) - params.begin();
    if (at == std::ssize(params)) params.push_back(p);
    sum_of.push_back(static_cast<std::int32_t>(at));
  }
  // Where a place updates its share only, or its share is the whole, the update reads the sums.
  const bool whole = plan_.params[params.front()].share >= 0 || plan_.meshes[group.mesh].axis_size("dp") == 1;
  std::map<std::int32_t, std::vector<ActorRef>> readers;
  for (auto s : group.stages) {
    readers[s] = {norm.at(s)};
    if (whole) readers[s].push_back(update.at(s));
  }
  const Ends sums = reduce_shares(group, Rate::step, uses, sum_of, shares, [&](std::int32_t s) { return readers.at(s); });
  Ends gather;
  if (!whole) {
    for (auto p : params) wholes.push_back(add_tensor(reduced_tensor(p, false), plan_.params[p].name + ".grad"));
    gather = everywhere(group, gradients_name(group, uses.front().second) + ".all_gather", Rate::step, shares, wholes);
  }
  for (auto s : group.stages) {
    const auto summed = at(sums.at(s)).out.front();
    std::int32_t rounded = summed;
    if (!whole) {
      plan_.roles[s].channels[summed].readers.push_back({gather.at(s).actor, static_cast<std::int32_t>(at(gather.at(s)).in.size())});
      at(gather.at(s)).in.push_back(summed);
      // Rounded gradients take the memory of the place's own sums. The gather waits for the commit, so that the sums
      // are there until then.
      rounded = add_result(PlanChannel::Kind::rounded, wholes, gather.at(s), {update.at(s)});
      after_commit_.insert(gather.at(s));
      for (const auto& [p, t] : uses)
        if (const auto own = place_.find({s, t}); own != place_.end()) {
          reused_.push_back({s, {own->second.first, rounded}});
          break;
        }
    }
    for (std::size_t u = 0; u < uses.size(); ++u) {
      for_norm[{s, uses[u].second}] = {summed, sum_of[u]};
      for_update[{s, uses[u].second}] = {rounded, sum_of[u]};
    }
  }
}

void Planner::add_param_refs(const Group& group, std::int32_t s, ActorRef who, const Found& found) {
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    PlanParamRef ref;
    ref.param = static_cast<std::int32_t>(group.params[i]);
    ref.index = static_cast<std::int32_t>(i);
    for (auto t : low_.params[group.params[i]].grads) {
      const auto [channel, index] = found.at({s, t});
      const auto& in = at(who).in;
      const auto port = std::find(in.begin(), in.end(), channel) - in.begin();
      const PlanParamRef::Use use{static_cast<std::int32_t>(port), index};
      // One sum may have several uses.
      if (std::find(ref.grads.begin(), ref.grads.end(), use) == ref.grads.end()) ref.grads.push_back(use);
    }
    at(who).params.push_back(std::move(ref));
  }
}

}  // namespace troupe::runtime
