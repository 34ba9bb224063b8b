// Exchanges: boxings that travel together, one actor at each end.
#include <algorithm>

#include "runtime/local_plan.h"
#include "runtime/planner.h"

namespace troupe::runtime {

void Planner::make_exchanges() {
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, bool>, std::vector<std::int32_t>> groups;
  for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
    const LoweredNode& n = low_.nodes[i];
    if (n.kind != LoweredNode::Kind::boxing) continue;
    const auto from = low_.producer[n.in[0]];
    // The producing segment (or the producing node itself where it is none) identifies the source.
    const auto w = node_actor_[from];
    const std::int32_t source = w.role >= 0 ? w.role * 100000 + w.actor : -1 - from;
    groups[{source, n.stage, n.program, n.backward}].push_back(static_cast<std::int32_t>(i));
  }
  std::vector<std::vector<std::int32_t>> in_order;   // as the graph has them
  for (auto& [key, nodes] : groups) in_order.push_back(std::move(nodes));
  std::sort(in_order.begin(), in_order.end());
  for (const auto& nodes : in_order) {
    const LoweredNode& first = low_.nodes[nodes[0]];
    const std::int32_t from_stage = plan_.tensors[first.in[0]].mesh, to_stage = first.stage;
    PlanExchange x;
    x.name = first.name;
    x.program = first.program;
    x.rate = first.rate;
    for (auto i : nodes) x.moves.push_back({low_.nodes[i].in[0], low_.nodes[i].out[0]});
    const Where to = add_exchange(x, first.rate, to_stage, first.backward);
    const Where source = from_stage == to_stage ? to : add_exchange_end(to, from_stage);
    for (auto i : nodes) {
      node_actor_[i] = to;
      exchange_source_[i] = source;
    }
  }
}

Where Planner::add_exchange(PlanExchange x, Rate rate, std::int32_t role, bool backward) {
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
  return add_actor(role, std::move(a));
}

Where Planner::add_exchange_end(Where other, std::int32_t role) { return add_actor(role, PlanActor(at(other))); }

void Planner::cost_exchanges() {
  for (auto& x : plan_.exchanges) {
    double seconds = 0, latency_s = 0;
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
      latency_s += boxing_seconds(*plan, 0, plan_.costs);
      if (const double added = adding_bytes(*plan, size_of(from.dtype)); added > 0) seconds += plan_.costs.kernel_s("add_into", 0, added);
    }
    x.seconds = seconds;
    x.latency_s = std::min(latency_s, seconds);
  }
}

}  // namespace troupe::runtime
