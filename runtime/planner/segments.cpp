// Segments: a run of ops on one stream is cut where data leaves it and comes back, and at unit boundaries.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "runtime/planner/passes.h"
#include "runtime/planner/waits.h"

namespace troupe::runtime {

namespace {

/// "layer0.fwd", "evaluate.layer0.fwd", "layer0.wgrad".
std::string segment_name(const PlanDraft& draft, std::int32_t program, std::int32_t unit, Pass pass,
                         std::int32_t part) {
  const char* suffix[] = {".fwd", ".bwd", ".wgrad"};
  return fmt::format("{}{}{}{}", draft.prefix(program), draft.graph.units()[unit], suffix[static_cast<int>(pass)],
                     part ? fmt::format(".{}", part) : "");
}

/// The pass of each node: Pass::weights for ops that make only parameter gradients, if they are a pass of their own.
std::vector<Pass> passes_of(const PlanDraft& draft) {
  std::vector<Pass> out;
  for (const LoweredNode& n : draft.low.nodes) {
    const bool only_gradients = !n.out.empty() && std::all_of(n.out.begin(), n.out.end(), [&](auto t) {
      return draft.plan.tensors[t].gradient_of >= 0;
    });
    // Shared units are not split.
    const Pipeline& pipeline = draft.plan.pipeline;
    const bool split = pipeline.splits_backward() ||
                       (!pipeline.ordered() && pipeline.weights_apart && has_model_axis(draft.plan.meshes[n.mesh]));
    const bool apart = split && only_gradients && n.mesh < draft.plan.stages;
    out.push_back(apart ? Pass::weights : n.backward ? Pass::backward : Pass::forward);
  }
  return out;
}

/// Program, mesh, unit, pass, rate; and the node, where it is a segment of its own, else -1.
using Group = std::tuple<std::int32_t, std::int32_t, std::int32_t, Pass, Rate, std::int32_t>;

bool is_alone(const LoweredNode& n) { return n.end == LoweredNode::End::keeps; }

}  // namespace

Segments make_segments(PlanDraft& draft) {
  const Graph& g = draft.graph;
  Plan& plan = draft.plan;
  const Lowered& low = draft.low;
  const auto pass_of = passes_of(draft);
  Segments out;
  // Weight gradients apart go with the part of the backward pass that makes what they multiply: they run while the next
  // part waits for an exchange. Where passes have an order they are one segment of it.
  const auto follows = [&](const Group& group, const Group& from) {
    const auto unit = [](const Group& g) { return std::tuple(std::get<0>(g), std::get<1>(g), std::get<2>(g)); };
    return !plan.pipeline.ordered() && std::get<3>(group) == Pass::weights && std::get<3>(from) == Pass::backward &&
           unit(group) == unit(from);
  };
  std::map<std::pair<Group, std::int32_t>, Ends> segments;
  std::vector<Group> group(low.nodes.size());
  std::vector<std::int32_t> part(low.nodes.size(), 0);
  Waits waits;
  std::vector<std::size_t> waiter(low.nodes.size());  // in `waits`
  std::map<std::pair<Group, std::int32_t>, std::size_t> segment_waiter;
  out.node_actor.assign(low.nodes.size(), {});
  for (std::size_t i = 0; i < low.nodes.size(); ++i) {
    const LoweredNode& n = low.nodes[i];
    if (n.kind == LoweredNode::Kind::report) {
      const auto from = low.producer[n.in[0]];
      group[i] = group[from];
      part[i] = part[from] + (low.nodes[from].kind == LoweredNode::Kind::op ? 0 : 1);
    } else {
      group[i] = {n.program, n.mesh, n.unit, pass_of[i], n.rate, is_alone(n) ? static_cast<std::int32_t>(i) : -1};
      for (auto t : n.in) {
        const auto from = low.producer[t];
        if (from < 0 || (group[from] != group[i] && !follows(group[i], group[from]))) continue;
        // Entering or leaving anything that is no op on this stream begins a new part.
        const bool cut = low.nodes[from].kind != LoweredNode::Kind::op;
        part[i] = std::max(part[i], part[from] + (cut ? 1 : 0));
      }
    }
    const bool in_segment = n.kind == LoweredNode::Kind::op || n.kind == LoweredNode::Kind::report;
    std::vector<std::size_t> makers;
    for (const auto t : n.in)
      if (const auto from = low.producer[t]; from >= 0) makers.push_back(waiter[from]);
    while (in_segment && segment_waiter.count({group[i], part[i]}) > 0 &&
           waits.any_waits_for(makers, segment_waiter.at({group[i], part[i]})))
      ++part[i];
    if (const auto known = segment_waiter.find({group[i], part[i]}); in_segment && known != segment_waiter.end())
      waiter[i] = known->second;
    else waiter[i] = waits.add();
    if (in_segment) segment_waiter[{group[i], part[i]}] = waiter[i];
    for (const std::size_t maker : makers) waits.wait(waiter[i], maker);
    if (!in_segment) continue;
    auto [it, fresh] = segments.try_emplace({group[i], part[i]});
    if (fresh) {
      PlanActor a;
      const auto [program, mesh, unit, pass, rate, alone] = group[i];
      a.kind = PlanActor::Kind::segment;
      a.program = program;
      a.rate = rate;
      a.pass = pass;
      const Priority of_pass[] = {forward_priority, backward_priority, weights_priority};
      a.priority = draft.priority(plan.is_step_program(program) ? of_pass[static_cast<int>(pass)] : other_priority,
                                  n.virtual_stage);
      // No other place waits for the backward work of a pipeline's first stage.
      if (plan.is_step_program(program) && mesh >= plan.stages &&
          (pass == Pass::forward || !draft.begins_pipeline(n.virtual_stage)))
        a.priority = draft.priority(urgent_priority, n.virtual_stage);
      a.run = run_of(program, static_cast<Run>(pass));
      a.name = alone < 0 ? segment_name(draft, program, unit, pass, part[i]) : draft.prefix(program) + n.name;
      for (auto role : plan.stages_on(mesh)) it->second[role] = draft.add_actor(role, a, n.virtual_stage);
    }
    out.node_actor[i] = it->second;
    for (const auto& [role, segment] : it->second) out.nodes[segment].push_back(static_cast<std::int32_t>(i));
  }
  for (const auto& unit : g.units()) {
    for (std::size_t i = 0; i < low.nodes.size(); ++i)
      if (g.units()[low.nodes[i].unit] == unit && low.nodes[i].kind != LoweredNode::Kind::boxing) {
        for (auto role : plan.stages_on(low.nodes[i].mesh)) plan.roles[role].units.push_back(unit);
        break;
      }
  }
  return out;
}

void take_turns(PlanDraft& draft, const Segments& segments) {
  const Plan& plan = draft.plan;
  std::set<std::tuple<std::int32_t, std::int32_t, Pass>> begun;  // role, virtual stage, pass
  for (const auto& [w, nodes] : segments.nodes) {
    const LoweredNode& n = draft.low.nodes[nodes.front()];
    if (!plan.ordered() || !plan.is_step_program(n.program) || n.mesh != w.role || is_alone(n)) continue;
    // Forward and backward segments follow the first of their pass by themselves; weight gradients wait for no other.
    const bool first = begun.insert({w.role, n.virtual_stage, draft.at(w).pass}).second;
    draft.at(w).takes_turns = first || draft.at(w).pass == Pass::weights;
  }
}

void make_user_actors(PlanDraft& draft, Segments& segments) {
  for (std::size_t i = 0; i < draft.low.nodes.size(); ++i) {
    const LoweredNode& n = draft.low.nodes[i];
    if (n.kind != LoweredNode::Kind::actor) continue;
    PlanActor a;
    a.kind = PlanActor::Kind::user;
    a.name = n.name;
    a.program = n.program;
    a.priority = draft.priority(forward_priority, n.virtual_stage);
    a.run = run_of(n.program, source_run);
    a.ops.push_back({n.op, n.name, n.attrs, {}, {}});
    for (auto role : draft.plan.stages_on(n.mesh)) {
      const ActorRef w = draft.add_actor(role, a, n.virtual_stage);
      segments.node_actor[i][role] = w;
      segments.user_nodes[w] = static_cast<std::int32_t>(i);
    }
  }
}

}  // namespace troupe::runtime
