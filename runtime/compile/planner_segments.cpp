// Segments: a run of ops on one stream is cut where data leaves it and comes back, and at unit boundaries.
#include <algorithm>

#include "runtime/compile/planner.h"

namespace troupe::runtime {

namespace {

/// "layer0.fwd", "evaluate.layer0.fwd", "layer0.wgrad".
std::string segment_name(const Graph& g, std::int32_t program, std::int32_t unit, Pass pass, std::int32_t part) {
  const char* suffix[] = {".fwd", ".bwd", ".wgrad"};
  return (program ? g.programs()[program] + "." : "") + g.units()[unit] + suffix[static_cast<int>(pass)] + (part ? "." + std::to_string(part) : "");
}

}  // namespace

void Planner::split_backward() {
  for (const LoweredNode& n : low_.nodes) {
    const bool only_gradients = !n.out.empty() && std::all_of(n.out.begin(), n.out.end(), [&](auto t) { return plan_.tensors[t].gradient_of >= 0; });
    // Shared units are not split.
    const bool apart = plan_.pipeline.splits_backward() && only_gradients && n.mesh < plan_.stages;
    pass_.push_back(apart ? Pass::weights : n.backward ? Pass::backward : Pass::forward);
  }
}

void Planner::make_segments() {
  using Group = std::tuple<std::int32_t, std::int32_t, std::int32_t, Pass, Rate>;   // program, mesh, unit, pass, rate
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
      group[i] = {n.program, n.mesh, n.unit, pass_[i], n.rate};
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
      const auto [program, mesh, unit, pass, rate] = group[i];
      a.kind = PlanActor::Kind::segment;
      a.program = program;
      a.rate = rate;
      a.pass = pass;
      const Priority of_pass[] = {forward_priority, backward_priority, weights_priority};
      a.priority = priority(program != 0 ? other_priority : of_pass[static_cast<int>(pass)], n.virtual_stage);
      // No other place waits for the backward work of virtual stage 0.
      if (program == 0 && mesh >= plan_.stages && (pass == Pass::forward || n.virtual_stage > 0)) a.priority = priority(urgent_priority, n.virtual_stage);
      a.run = run_of(program, static_cast<Run>(pass));
      a.name = segment_name(g_, program, unit, pass, part[i]);
      for (auto role : plan_.stages_on(mesh)) it->second[role] = add_actor(role, a, n.virtual_stage);
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

void Planner::take_turns() {
  std::set<std::tuple<std::int32_t, std::int32_t, Pass>> begun;   // role, virtual stage, pass
  for (const auto& [w, nodes] : segment_nodes_) {
    const LoweredNode& n = low_.nodes[nodes.front()];
    if (!plan_.ordered() || n.program != 0 || n.mesh != w.role) continue;
    // Forward and backward segments follow the first of their pass by themselves; weight gradients wait for no other.
    const bool first = begun.insert({w.role, n.virtual_stage, at(w).pass}).second;
    at(w).takes_turns = first || at(w).pass == Pass::weights;
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
    a.priority = priority(forward_priority, n.virtual_stage);
    a.run = run_of(n.program, source_run);
    a.ops.push_back({n.op, n.name, n.attrs, {}, {}});
    for (auto role : plan_.stages_on(n.mesh)) node_actor_[i][role] = add_actor(role, a, n.virtual_stage);
  }
}

}  // namespace troupe::runtime
