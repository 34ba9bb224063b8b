// Exchanges: boxings that travel together, one actor at each end.
#include <algorithm>

#include "runtime/local_plan.h"
#include "runtime/planner.h"
#include "runtime/round_boxing.h"

namespace troupe::runtime {

void Planner::make_exchanges() {
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, bool>, std::vector<std::int32_t>> groups;
  for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
    const LoweredNode& n = low_.nodes[i];
    if (n.kind != LoweredNode::Kind::boxing) continue;
    const auto from = low_.producer[n.in[0]];
    // The producing segment (or the producing node itself where it is none) identifies the source.
    const auto& made = node_actor_[from];
    const std::int32_t source = made.empty() ? -1 - from : made.begin()->second.role * 100000 + made.begin()->second.actor;
    groups[{source, n.mesh, n.program, n.backward}].push_back(static_cast<std::int32_t>(i));
  }
  std::vector<std::vector<std::int32_t>> in_order;   // as the graph has them
  for (auto& [key, nodes] : groups) in_order.push_back(std::move(nodes));
  std::sort(in_order.begin(), in_order.end());
  for (const auto& nodes : in_order) {
    const LoweredNode& first = low_.nodes[nodes[0]];
    PlanExchange x;
    x.name = first.name;
    x.program = first.program;
    x.rate = first.rate;
    for (auto i : nodes) x.moves.push_back({low_.nodes[i].in[0], low_.nodes[i].out[0]});
    Ends to, source;
    const auto to_roles = plan_.stages_on(first.mesh);
    const Where made = add_exchange(std::move(x), first.rate, to_roles.front(), first.depth, first.backward);
    for (auto role : to_roles) to[role] = role == made.role ? made : add_exchange_end(made, role);
    for (auto role : plan_.stages_on(plan_.tensors[first.in[0]].mesh))
      source[role] = to.count(role) ? to.at(role) : add_exchange_end(made, role);
    for (auto i : nodes) {
      node_actor_[i] = to;
      exchange_source_[i] = source;
    }
  }
}

Where Planner::add_exchange(PlanExchange x, Rate rate, std::int32_t role, std::int32_t depth, bool backward) {
  PlanActor a;
  a.kind = PlanActor::Kind::exchange;
  a.name = x.name;
  a.program = x.program;
  a.rate = rate;
  a.backward = backward;
  a.stream = "comm";
  a.priority = backward ? backward_priority : x.program ? other_priority : forward_priority;
  a.exchange = static_cast<std::int32_t>(plan_.exchanges.size());
  plan_.exchanges.push_back(std::move(x));
  return add_actor(role, std::move(a), depth);
}

Where Planner::add_exchange_end(Where other, std::int32_t role) { return add_actor(role, PlanActor(at(other)), depth_.at(other)); }

Ends Planner::add_exchange_ends(PlanExchange x, const std::vector<std::int32_t>& roles, std::int32_t depth, bool backward) {
  Ends ends;
  const Rate rate = x.rate;
  const Where first = add_exchange(std::move(x), rate, roles.front(), depth, backward);
  for (auto role : roles) ends[role] = role == first.role ? first : add_exchange_end(first, role);
  return ends;
}

void Planner::cost_exchanges() {
  for (auto& x : plan_.exchanges) {
    if (x.rate == Rate::lane_round || x.rate == Rate::round) {
      cost_round(x);
      continue;
    }
    double seconds = 0;
    for (std::size_t i = 0; i < x.moves.size(); ++i) {
      const PlanTensor& from = plan_.tensors[x.moves[i].from];
      // The first dp coordinate stands for all: widths and shares differ by one unit at most.
      Layout a = plan_.layout(x.moves[i].from, 0), b = plan_.layout(x.moves[i].to, 0);
      if (i == 0) x.collective = collective_of(a, b);
      const auto plan = from.lane_terms ? lane_boxing(plan_, x.moves[i].from, x.moves[i].to, b.mesh.ranks[0]) : plan_boxing(a, b);
      if (!plan.ok()) continue;   // local_plan() reports it with its names
      // Lanes meet once for each coordinate on the model axes.
      x.bytes += plan->moved_bytes(size_of(from.dtype)) * (from.lane_terms ? b.mesh.size() / b.mesh.axis_size("dp") : 1);
      seconds += boxing_seconds(*plan, size_of(from.dtype), plan_.costs);
    }
    x.seconds = seconds;
  }
}

void Planner::cost_round(PlanExchange& x) {
  const PlanTensor &from = plan_.tensors[x.moves[0].from], &to = plan_.tensors[x.moves[0].to];
  x.collective = collective_of(plan_.layout(x.moves[0].from, 0), plan_.layout(x.moves[0].to, 0));
  const Mesh& mesh = plan_.meshes[to.mesh];
  const auto boxings = round_boxings(plan_, x, 0, mesh.ranks[0]);
  if (!boxings.ok()) return;   // local_plan() reports it with its names
  BoxingPlan all;
  for (const auto& b : *boxings) all.transfers.insert(all.transfers.end(), b.plan.transfers.begin(), b.plan.transfers.end());
  // The places along dp meet once for each coordinate on the model axes.
  x.bytes = all.moved_bytes(size_of(from.dtype)) * (mesh.size() / mesh.axis_size("dp"));
  x.seconds = boxing_seconds(all, size_of(from.dtype), plan_.costs);
}

}  // namespace troupe::runtime
