// ZeRO as layouts (Rajbhandari et al., 2020): S(0) along dp for the optimizer's state (1), for reduced gradients as
// well (2), for the parameters between their uses too (3).
#include "devices/base/check.h"
#include "runtime/planner.h"

namespace troupe::runtime {

void Planner::make_shares(const Group& group) {
  for (auto p : group.params) {
    PlanTensor share = plan_.tensors[low_.params[p].tensor];
    share.sbp[dp_axis(plan_.meshes[share.mesh])] = Sbp::S(0);
    plan_.params[p].share = add_tensor(share, share.name + ".share");
    plan_.params[p].stored_as_share = zero_ == 3;
  }
}

void Planner::gather_updated(const Group& group, const Ends& update) {
  PlanExchange gather;
  gather.name = group.name + ".all_gather";
  gather.rate = Rate::step;
  for (auto p : group.params) gather.moves.push_back({plan_.params[p].share, low_.params[p].tensor});
  for (const auto& [stage, where] : update) at(where).exchange = static_cast<std::int32_t>(plan_.exchanges.size());
  plan_.exchanges.push_back(std::move(gather));
}

std::map<std::int32_t, std::set<Where>> Planner::gather_for_uses(const Group& group) {
  struct Use {
    std::set<std::size_t> params;
    std::map<std::int32_t, std::set<Where>> readers;   // by role
  };
  std::map<std::tuple<std::int32_t, bool, std::int32_t, std::int32_t>, Use> uses;   // program, backward, unit, mesh
  for (auto p : group.params)
    for (const Where& r : readers_[low_.params[p].tensor]) {
      const LoweredNode& n = low_.nodes[segment_nodes_.at(r).front()];
      Use& use = uses[{n.program, at(r).backward(), n.unit, n.mesh}];
      use.params.insert(p);
      use.readers[r.role].insert(r);
    }
  std::map<std::int32_t, std::set<Where>> holders;
  for (const auto& [key, use] : uses) {
    const auto& [program, backward, unit, mesh] = key;
    const std::string& name = g_.units()[unit];
    PlanExchange x;
    x.name = (program ? g_.programs()[program] + "." : "") + name + (backward ? ".bwd" : ".fwd") + ".gather" +
             (name == group.name ? "" : ".of." + group.name);
    x.program = program;
    x.rate = Rate::round;
    std::vector<std::int32_t> tensors;
    for (auto p : use.params) {
      PlanTensor t = plan_.tensors[low_.params[p].tensor];
      t.mesh = mesh;
      t.rate = Rate::round;
      tensors.push_back(add_tensor(t, t.name + ".gathered"));
      x.moves.push_back({plan_.params[p].share, tensors.back()});
      for (const auto& [role, readers] : use.readers)
        for (const Where& r : readers) gathered_[{r, low_.params[p].tensor}] = tensors.back();
    }
    const auto depth = at(*use.readers.begin()->second.begin()).depth;
    for (const auto& [s, end] : add_exchange_ends(std::move(x), group.stages, depth, backward)) {
      holders[s].insert(end);
      if (!use.readers.count(s)) continue;   // it has shares that another stage needs
      PlanChannel c;
      c.kind = PlanChannel::Kind::gathered;
      c.name = at(end).name;
      c.rate = Rate::round;
      for (auto t : tensors) put(c, t);
      const auto& readers = use.readers.at(s);
      const auto id = connect(std::move(c), end, {readers.begin(), readers.end()});
      for (std::size_t i = 0; i < tensors.size(); ++i) place_[{s, tensors[i]}] = {id, static_cast<std::int32_t>(i)};
    }
  }
  return holders;
}

void Planner::reduce_by_lanes(const Group& group, const Ends& writers, PlanChannel grads,
                              const std::vector<std::pair<std::size_t, std::int32_t>>& uses, Ends& norm, Ends& update, Found& found) {
  const bool summed = summed_on_model_axis(plan_.tensors[uses.front().second]);
  PlanExchange x;
  x.name = grads.name + ".scatter";
  x.rate = Rate::lane_round;
  std::vector<std::int32_t> parts, shares, sums;
  for (const auto& [p, t] : uses) {
    const std::string name = plan_.tensors[t].name;
    plan_.tensors[t].rate = Rate::lane;
    PlanTensor share = reduced_tensor(p, t, true, true), part = share;
    part.rate = Rate::lane_round;
    parts.push_back(add_tensor(part, name + ".part"));
    shares.push_back(add_tensor(share, name + ".share"));
    sums.push_back(summed ? add_tensor(reduced_tensor(p, t, true, false), name + ".share.sum") : shares.back());
    x.moves.push_back({t, parts.back()});
  }
  const auto depth = at(writers.begin()->second).depth;
  const Ends ends = add_exchange_ends(std::move(x), group.stages, depth, true);
  auto all_reduce = summed ? everywhere(group, grads.name + ".all_reduce", shares, sums) : Ends{};
  grads.rate = Rate::lane;
  using Kind = PlanChannel::Kind;
  for (const auto& [s, end] : ends) {
    if (const auto writer = writers.find(s); writer != writers.end()) {
      const auto id = connect(grads, writer->second, {end});
      for (std::size_t i = 0; i < uses.size(); ++i) place_[{s, uses[i].second}] = {id, static_cast<std::int32_t>(i)};
    }
    PlanActor a;
    a.kind = PlanActor::Kind::sum;
    a.name = grads.name + ".sum";
    a.rate = Rate::lane_round;
    a.stream = "comm";   // on the compute stream it would wait behind the backward pass, and the next parts behind it
    a.priority = priority(backward_priority, depth);
    a.run = run_of(0, update_run);
    const Where sum = add_actor(s, std::move(a), depth);
    PlanChannel c;
    c.kind = Kind::part;
    c.name = at(end).name;
    c.rate = Rate::lane_round;
    c.slots = writers.count(s) ? 1 : 2;   // where the gradients are made the slot is part of a ring
    for (auto t : parts) put(c, t);
    connect(std::move(c), end, {sum});
    const auto id = add_sums(Kind::sum, shares, sum, summed ? std::vector{all_reduce[s]} : std::vector{norm[s], update[s]});
    const auto whole = summed ? add_sums(Kind::reduced, sums, all_reduce[s], {norm[s], update[s]}) : id;
    for (std::size_t i = 0; i < uses.size(); ++i) found[{s, uses[i].second}] = {whole, static_cast<std::int32_t>(i)};
  }
}

}  // namespace troupe::runtime
