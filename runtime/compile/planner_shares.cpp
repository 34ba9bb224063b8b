// ZeRO as layouts (Rajbhandari et al., 2020): S(0) along dp for the optimizer's state (1), for reduced gradients as
// well (2), for the parameters between their uses too (3).
#include "runtime/compile/planner.h"

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

std::map<std::int32_t, std::set<ActorRef>> Planner::gather_for_uses(const Group& group) {
  struct Use {
    std::set<std::size_t> params;
    std::map<std::int32_t, std::set<ActorRef>> readers;   // by role
  };
  std::map<std::tuple<std::int32_t, bool, std::int32_t, std::int32_t>, Use> uses;   // program, backward, unit, mesh
  for (auto p : group.params)
    for (const ActorRef& r : readers_[low_.params[p].tensor]) {
      const LoweredNode& n = low_.nodes[segment_nodes_.at(r).front()];
      Use& use = uses[{n.program, at(r).backward(), n.unit, n.mesh}];
      use.params.insert(p);
      use.readers[r.role].insert(r);
    }
  std::map<std::int32_t, std::set<ActorRef>> holders;
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
        for (const ActorRef& r : readers) gathered_[{r, low_.params[p].tensor}] = tensors.back();
    }
    const auto virtual_stage = at(*use.readers.begin()->second.begin()).virtual_stage;
    for (const auto& [s, end] : add_exchange_ends(std::move(x), group.stages, virtual_stage, backward)) {
      holders[s].insert(end);
      if (!use.readers.count(s)) continue;   // this stage only has shares that another stage needs
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

void Planner::reduce_by_rounds(const Group& group, const Uses& uses, const Ends& norm, const Ends& update, Found& found) {
  std::vector<std::int32_t> sum_of, shares;
  for (const auto& [p, t] : uses) {
    // A microbatch's gradient that is one term travels as it is and is converted where it is added.
    plan_.tensors[t].rate = Rate::microbatch;
    if (terms_of(t) == 1) plan_.tensors[t].dtype = DType::f32;
    // Each use has a sum of its own: its stage's rounds are its own.
    sum_of.push_back(static_cast<std::int32_t>(sum_of.size()));
  }
  const Ends sums = reduce_shares(group, Rate::round, uses, sum_of, shares, [&](std::int32_t s) { return std::vector{norm.at(s), update.at(s)}; });
  for (auto s : group.stages)
    for (std::size_t u = 0; u < uses.size(); ++u) found[{s, uses[u].second}] = {at(sums.at(s)).out.front(), static_cast<std::int32_t>(u)};
}

}  // namespace troupe::runtime
