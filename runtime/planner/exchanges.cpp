// Exchanges: boxings that travel together, one actor at each end; then who makes and who reads each tensor.
#include <algorithm>

#include "runtime/planner/passes.h"

namespace troupe::runtime {

Edges make_exchanges(PlanDraft& draft, Segments& segments) {
  const Plan& plan = draft.plan;
  const auto& nodes = draft.low.nodes;
  using Source = std::pair<std::int32_t, std::int32_t>;  // role and actor, or no role and a node
  std::map<std::tuple<Source, std::int32_t, std::int32_t, bool>, std::vector<std::int32_t>> groups;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const LoweredNode& n = nodes[i];
    if (n.kind != LoweredNode::Kind::boxing) continue;
    const auto from = draft.low.producer[n.in[0]];
    // The producing segment (or the producing node itself where it is none) identifies the source.
    const auto& made = segments.node_actor[from];
    const Source source = made.empty() ? Source{-1, from}
                                       : Source{made.begin()->second.role, made.begin()->second.actor};
    groups[{source, n.mesh, n.program, n.backward}].push_back(static_cast<std::int32_t>(i));
  }
  std::vector<std::vector<std::int32_t>> in_order;  // as the graph has them
  for (auto& [key, boxings] : groups) in_order.push_back(std::move(boxings));
  std::sort(in_order.begin(), in_order.end());

  std::map<std::int32_t, Ends> sending;  // boxing -> its sending ends
  for (const auto& boxings : in_order) {
    const LoweredNode& first = nodes[boxings[0]];
    PlanExchange x;
    x.name = first.name;
    x.program = first.program;
    x.rate = first.rate;
    for (auto i : boxings) x.moves.push_back({nodes[i].in[0], nodes[i].out[0]});
    const Ends to = draft.add_exchange(std::move(x), plan.stages_on(first.mesh), first.virtual_stage, first.backward);
    Ends source;
    for (auto role : plan.stages_on(plan.tensors[first.in[0]].mesh))
      source[role] = to.count(role) ? to.at(role) : draft.add_exchange_end(to.begin()->second, role);
    for (auto i : boxings) {
      segments.node_actor[i] = to;
      sending[i] = source;
    }
  }

  Edges edges{std::vector<Ends>(plan.tensors.size()), std::vector<std::vector<ActorRef>>(plan.tensors.size())};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const LoweredNode& n = nodes[i];
    const Ends& readers = n.kind == LoweredNode::Kind::boxing ? sending.at(static_cast<std::int32_t>(i))
                                                              : segments.node_actor[i];
    for (auto t : n.in)
      for (const auto& [role, reader] : readers)
        if (auto& all = edges.readers[t]; std::find(all.begin(), all.end(), reader) == all.end()) all.push_back(reader);
    if (n.delayed >= 0)
      for (const auto& [role, reader] : readers) edges.readers[n.delayed].push_back(reader);
    for (auto t : n.out)
      edges.writer[t] = n.kind == LoweredNode::Kind::feed ? Ends{{n.mesh, {n.mesh, -1}}} : segments.node_actor[i];
  }
  return edges;
}

}  // namespace troupe::runtime
