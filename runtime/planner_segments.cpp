// Segments: a run of ops on one stream is cut where data leaves it and comes back, and at unit boundaries.
#include <algorithm>

#include "runtime/planner.h"

namespace troupe::runtime {

void Planner::make_segments() {
  using Group = std::tuple<std::int32_t, std::int32_t, std::int32_t, bool, Rate>;   // program, mesh, unit, backward, rate
  std::map<std::pair<Group, std::int32_t>, Ends> segments;
  std::vector<Group> group(low_.nodes.size());
  std::vector<std::int32_t> part(low_.nodes.size(), 0);
  node_actor_.assign(low_.nodes.size(), {});
  for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
    const LoweredNode& n = low_.nodes[i];
    if (n.kind == LoweredNode::Kind::report) {
      const auto from = low_.producer[n.in[0]];
      group[i] = group[from];
      part[i] = part[from] + (low_.nodes[from].kind == LoweredNode::Kind::op ? 0 : 1);
    } else {
      group[i] = {n.program, n.mesh, n.unit, n.backward, n.rate};
      for (auto t : n.in) {
        const auto from = low_.producer[t];
        if (from < 0 || group[from] != group[i]) continue;
        // Entering or leaving anything that is no op on this stream begins a new part.
        const bool cut = low_.nodes[from].kind != LoweredNode::Kind::op;
        part[i] = std::max(part[i], part[from] + (cut ? 1 : 0));
      }
    }
    if (n.kind != LoweredNode::Kind::op && n.kind != LoweredNode::Kind::report) continue;
    auto [it, fresh] = segments.try_emplace({group[i], part[i]});
    if (fresh) {
      PlanActor a;
      const auto [program, mesh, unit, backward, rate] = group[i];
      a.kind = PlanActor::Kind::segment;
      a.program = program;
      a.rate = rate;
      a.backward = backward;
      a.stream = "compute";
      a.priority = program != 0 ? other_priority : backward ? backward_priority : forward_priority;
      // Nobody waits for what the first stage's backward work leaves.
      if (program == 0 && mesh >= plan_.stages && (!backward || n.depth > 0)) a.priority = urgent_priority;
      a.run = static_cast<std::uint32_t>(program * 4 + (backward ? 1 : 0));
      a.name = (program ? g_.programs()[program] + "." : "") + g_.units()[unit] + (backward ? ".bwd" : ".fwd") +
               (part[i] ? "." + std::to_string(part[i]) : "");
      for (auto role : plan_.stages_on(mesh)) it->second[role] = add_actor(role, a, n.depth);
    }
    node_actor_[i] = it->second;
    for (const auto& [role, segment] : it->second) segment_nodes_[segment].push_back(static_cast<std::int32_t>(i));
  }
  for (const auto& unit : g_.units()) {
    for (std::size_t i = 0; i < low_.nodes.size(); ++i)
      if (g_.units()[low_.nodes[i].unit] == unit && low_.nodes[i].kind != LoweredNode::Kind::boxing) {
        for (auto role : plan_.stages_on(low_.nodes[i].mesh)) plan_.roles[role].units.push_back(unit);
        break;
      }
  }
}

void Planner::make_actors() {
  for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
    const LoweredNode& n = low_.nodes[i];
    if (n.kind != LoweredNode::Kind::actor) continue;
    PlanActor a;
    a.kind = PlanActor::Kind::user;
    a.name = n.name;
    a.program = n.program;
    a.stream = "host";
    a.priority = forward_priority;
    a.run = static_cast<std::uint32_t>(n.program * 4 + 2);
    a.ops.push_back({n.op, n.name, n.attrs, {}, {}});
    for (auto role : plan_.stages_on(n.mesh)) node_actor_[i][role] = add_actor(role, a, n.depth);
  }
}

}  // namespace troupe::runtime
