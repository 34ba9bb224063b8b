// The way of gradients from the segments that make them to norms and updates.
#include <algorithm>

#include "runtime/planner/group_pass.h"

namespace troupe::runtime {

void GroupPass::connect_gradients(std::int32_t s, const Uses& uses, const std::vector<ActorRef>& readers) {
  std::map<ActorRef, std::vector<std::int32_t>> made;  // by the segments of this stage
  for (const auto& [p, t] : uses)
    if (const auto it = edges_.writer[t].find(s); it != edges_.writer[t].end()) made[it->second].push_back(t);
  for (const auto& [writer, tensors] : made) {
    PlanChannel c;
    c.kind = PlanChannel::Kind::gradient;
    c.name = gradients_name(tensors[0]);
    c.rate = plan().tensors[tensors[0]].rate;
    for (auto t : tensors) draft_.put(c, t);
    draft_.connect(std::move(c), writer, readers);
  }
}

std::string GroupPass::gradients_name(std::int32_t gradient) const {
  const ActorRef writer = edges_.writer[gradient].begin()->second;
  return draft_.at(writer).name + ".grads" +
         (draft_.at(writer).name.rfind(group_.name + ".", 0) == 0 ? "" : ".of." + group_.name);
}

bool GroupPass::summed_on_model_axis(const PlanTensor& grad) const {
  const Mesh& mesh = plan().meshes[grad.mesh];
  for (std::size_t a = 0; a < mesh.axes.size(); ++a)
    if (static_cast<int>(a) != dp_axis(mesh) && mesh.axes[a].size > 1 && grad.sbp[a].is_partial()) return true;
  return false;
}

PlanTensor GroupPass::reduced_tensor(std::size_t param, bool share) const {
  PlanTensor t = plan().tensors[low().params[param].tensor];
  t.sbp[dp_axis(plan().meshes[t.mesh])] = share ? Sbp::S(0) : Sbp::B();
  t.dtype = share ? DType::sum64 : DType::f32;
  t.gradient_of = static_cast<std::int32_t>(param);
  return t;
}

Ends GroupPass::everywhere(const std::string& name, Rate rate, const std::vector<std::int32_t>& from,
                           const std::vector<std::int32_t>& to) {
  PlanExchange x;
  x.name = name;
  x.program = group_.program;
  x.rate = rate;
  for (std::size_t i = 0; i < from.size(); ++i) x.moves.push_back({from[i], to[i]});
  const auto virtual_stage = rate == Rate::round ? draft_.at(edges_.writer[from[0]].begin()->second).virtual_stage : 0;
  auto ends = draft_.add_exchange(std::move(x), group_.stages, virtual_stage, true);
  // The slot has the exponents of the sums; its token has the step where a stage has no other input.
  for (const auto& [stage, end] : ends)
    draft_.add_reader(draft_.home(stage, plan().params[group_.params[0]].stored())->channel, end);
  return ends;
}

std::int32_t GroupPass::add_result(PlanChannel::Kind kind, const std::vector<std::int32_t>& tensors, ActorRef from,
                                   const std::vector<ActorRef>& readers) {
  PlanChannel c;
  c.kind = kind;
  c.rate = Rate::step;
  c.name = draft_.at(from).name;
  for (auto t : tensors) draft_.put(c, t);
  return draft_.connect(std::move(c), from, readers);
}

Ends GroupPass::reduce_shares(Rate rate, const Uses& uses, const std::vector<std::int32_t>& sum_of,
                              std::vector<std::int32_t>& shares,
                              const std::function<std::vector<ActorRef>(std::int32_t)>& readers) {
  const std::string name = gradients_name(uses.front().second);
  const auto count = static_cast<std::size_t>(*std::max_element(sum_of.begin(), sum_of.end())) + 1;
  // A gradient that is a sum on model axes too is added along dp first, then along these axes: no exchange then has
  // more places than one line of the mesh along its axes.
  std::vector<std::int32_t> from, to, along_dp(count, -1);
  bool summed = false;
  for (std::size_t u = 0; u < uses.size(); ++u) {
    const auto [p, t] = uses[u];
    auto& sum = along_dp[static_cast<std::size_t>(sum_of[u])];
    if (sum < 0) sum = draft_.add_tensor(reduced_tensor(p, true), plan().tensors[t].name + ".share");
    const Mesh& mesh = plan().meshes[plan().tensors[t].mesh];
    for (std::size_t a = 0; a < mesh.axes.size(); ++a)
      if (static_cast<int>(a) != dp_axis(mesh) && mesh.axes[a].size > 1 && plan().tensors[t].sbp[a].is_partial())
        plan().tensors[sum].sbp[a] = Sbp::P(), summed = true;
    from.push_back(t);
    to.push_back(sum);
  }
  const Ends scatter = everywhere(name + ".reduce_scatter", rate, from, to);
  shares = along_dp;
  if (summed)
    for (std::size_t i = 0; i < count; ++i) {
      const auto u = static_cast<std::size_t>(std::find(sum_of.begin(), sum_of.end(), static_cast<std::int32_t>(i)) -
                                              sum_of.begin());
      shares[i] = draft_.add_tensor(reduced_tensor(uses[u].first, true),
                                    plan().tensors[uses[u].second].name + ".share.sum");
    }
  const Ends whole = summed ? everywhere(name + ".all_reduce", Rate::step, along_dp, shares) : scatter;
  for (auto s : group_.stages) {
    connect_gradients(s, uses, {scatter.at(s)});
    if (summed) add_result(PlanChannel::Kind::reduced, along_dp, scatter.at(s), {whole.at(s)});
    add_result(PlanChannel::Kind::reduced, shares, whole.at(s), readers(s));
  }
  return whole;
}

void GroupPass::reduce(const Uses& uses, Found& for_norm, Found& for_update) {
  std::vector<std::size_t> params;  // all uses of a parameter are added into one sum
  std::vector<std::int32_t> sum_of, shares, wholes;
  for (const auto& [p, t] : uses) {
    const auto at = std::find(params.begin(), params.end(), p) - params.begin();
    if (at == std::ssize(params)) params.push_back(p);
    sum_of.push_back(static_cast<std::int32_t>(at));
  }
  // Where a place updates its share only, or its share is the whole, the update reads the sums.
  const bool whole = plan().params[params.front()].share >= 0 || plan().meshes[group_.mesh].axis_size("dp") == 1;
  std::map<std::int32_t, std::vector<ActorRef>> readers;
  for (auto s : group_.stages) {
    readers[s] = {norm_.at(s)};
    if (whole) readers[s].push_back(update_.at(s));
  }
  const Ends sums = reduce_shares(Rate::step, uses, sum_of, shares, [&](std::int32_t s) { return readers.at(s); });
  Ends gather;
  if (!whole) {
    for (auto p : params)
      wholes.push_back(draft_.add_tensor(reduced_tensor(p, false), plan().params[p].name + ".grad"));
    gather = everywhere(gradients_name(uses.front().second) + ".all_gather", Rate::step, shares, wholes);
  }
  for (auto s : group_.stages) {
    const auto summed = draft_.at(sums.at(s)).out.front();
    std::int32_t rounded = summed;
    if (!whole) {
      draft_.add_reader(summed, gather.at(s));
      // Rounded gradients take the memory of the place's own sums. The gather waits for the commit, so that the sums
      // are there until then.
      rounded = add_result(PlanChannel::Kind::rounded, wholes, gather.at(s), {update_.at(s)});
      out_.after_commit.insert(gather.at(s));
      for (const auto& [p, t] : uses)
        if (const auto own = draft_.home(s, t)) {
          out_.reused.push_back({s, {own->channel, rounded}});
          break;
        }
    }
    for (std::size_t u = 0; u < uses.size(); ++u) {
      for_norm[{s, uses[u].second}] = {summed, sum_of[u]};
      for_update[{s, uses[u].second}] = {rounded, sum_of[u]};
    }
  }
}

void GroupPass::reduce_by_rounds(const Uses& uses, Found& found) {
  std::vector<std::int32_t> sum_of, shares;
  // Each use has a sum of its own: its stage's rounds are its own.
  for (std::size_t u = 0; u < uses.size(); ++u) sum_of.push_back(static_cast<std::int32_t>(u));
  const Ends sums = reduce_shares(Rate::round, uses, sum_of, shares, [&](std::int32_t s) {
    return std::vector{norm_.at(s), update_.at(s)};
  });
  for (auto s : group_.stages)
    for (std::size_t u = 0; u < uses.size(); ++u)
      found[{s, uses[u].second}] = {draft_.at(sums.at(s)).out.front(), static_cast<std::int32_t>(u)};
}

}  // namespace troupe::runtime
