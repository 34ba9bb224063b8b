// Operands: where each op finds its arguments; scratch memory by lifetime; ops' state; costs; actors that close a step.
#include <algorithm>

#include "devices/base/check.h"
#include "runtime/compile/planner.h"

namespace troupe::runtime {

TensorType Planner::local_type(std::int32_t tensor) const {
  const Layout l = plan_.layout(tensor, 0);
  return {l.dtype, l.extent_at(0).shape()};
}

PlanOperand Planner::operand(ActorRef who, std::int32_t tensor, bool writes) {
  PlanOperand o;
  if (const auto it = gathered_.find({who, tensor}); it != gathered_.end()) tensor = it->second;
  o.tensor = tensor;
  const auto it = place_.find({who.role, tensor});
  if (it == place_.end()) {
    o.where = PlanOperand::Where::scratch;
    return o;
  }
  const auto place = it->second;
  const bool own = writes || (low_.producer[tensor] >= 0 && writer_[tensor].at(who.role) == who);
  const auto& ports = own ? at(who).out : at(who).in;
  const auto port = std::find(ports.begin(), ports.end(), place.first) - ports.begin();
  ASSERT(port < static_cast<std::ptrdiff_t>(ports.size()), at(who).name, plan_.tensors[tensor].name);
  o.where = own ? PlanOperand::Where::out : PlanOperand::Where::in;
  o.port = static_cast<std::int32_t>(port);
  o.index = place.second;
  return o;
}

void Planner::fill_operands() {
  for (auto& [where, nodes] : segment_nodes_) {
    std::sort(nodes.begin(), nodes.end());
    std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> life;   // scratch tensor -> first, last op
    std::vector<PlanOp> ops;
    for (auto i : nodes) {
      const LoweredNode& n = low_.nodes[i];
      PlanOp op{n.kind == LoweredNode::Kind::report ? "" : n.op, n.name, n.attrs, {}, {}};
      const auto index = static_cast<std::int32_t>(ops.size());
      for (auto t : n.in) op.in.push_back(operand(where, t, false));
      for (auto t : n.out) op.out.push_back(operand(where, t, true));
      for (const auto* side : {&op.in, &op.out})
        for (const auto& o : *side)
          if (o.where == PlanOperand::Where::scratch) {
            auto [it, fresh] = life.try_emplace(o.tensor, index, index);
            it->second.second = index;
          }
      ops.push_back(std::move(op));
    }
    PlanActor& actor = at(where);
    actor.op_scratch_offset = place_scratch(ops, life);
    std::int64_t own = 0;
    for (auto& op : ops) {
      if (op.op.empty()) continue;
      const auto* def = g_.ops().find(op.op);
      std::vector<TensorType> in, out;
      for (const auto& o : op.in) in.push_back(local_type(o.tensor));
      for (const auto& o : op.out) out.push_back(local_type(o.tensor));
      if (def->scratch_bytes) own = std::max(own, def->scratch_bytes(in, out, op.attrs));
      if (def->state_bytes) {
        op.state_offset = actor.state_bytes;
        op.state_bytes = def->state_bytes(in, out, op.attrs);
        actor.state_bytes += aligned(op.state_bytes);
      }
      const auto cost = op_cost(*def, in, out, op.attrs);
      actor.cost_s += plan_.costs.kernel_s(op.op, cost.flops, cost.bytes);
    }
    actor.scratch_bytes = actor.op_scratch_offset + aligned(own);
    actor.ops = std::move(ops);
  }
  for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
    const LoweredNode& n = low_.nodes[i];
    if (n.kind != LoweredNode::Kind::actor) continue;
    for (const auto& [role, actor] : node_actor_[i]) {
      PlanOp& op = at(actor).ops[0];
      for (auto t : n.in) op.in.push_back(operand(actor, t, false));
      for (auto t : n.out) op.out.push_back(operand(actor, t, true));
    }
  }
}

std::int64_t Planner::place_scratch(std::vector<PlanOp>& ops,
                           const std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>>& life) {
  struct Block {
    std::int32_t tensor, first, last;
    std::int64_t offset, bytes;
  };
  std::vector<Block> placed;
  std::vector<std::pair<std::int32_t, std::int32_t>> order;   // by first use
  for (const auto& [t, l] : life) order.push_back({l.first, t});
  std::sort(order.begin(), order.end());
  std::int64_t total = 0;
  for (const auto& [first, t] : order) {
    Block b{t, first, life.at(t).second, 0, aligned(local_bytes(t))};
    std::vector<Block> busy;
    for (const auto& other : placed)
      if (other.first <= b.last && b.first <= other.last) busy.push_back(other);
    std::sort(busy.begin(), busy.end(), [](const Block& x, const Block& y) { return x.offset < y.offset; });
    for (const auto& other : busy) {
      if (b.offset + b.bytes <= other.offset) break;
      b.offset = std::max(b.offset, other.offset + other.bytes);
    }
    total = std::max(total, b.offset + b.bytes);
    placed.push_back(b);
  }
  for (auto& op : ops)
    for (auto* side : {&op.in, &op.out})
      for (auto& o : *side)
        if (o.where == PlanOperand::Where::scratch)
          o.offset = std::find_if(placed.begin(), placed.end(), [&](const Block& b) { return b.tensor == o.tensor; })->offset;
  return total;
}

void Planner::finish_actors() {
  for (auto& role : plan_.roles)
    for (auto& a : role.actors) finish_actor(role, a);
  cost_exchanges();
}

void Planner::finish_actor(const PlanRole& role, PlanActor& a) {
  if (a.kind == PlanActor::Kind::norm || a.kind == PlanActor::Kind::update || a.kind == PlanActor::Kind::digest) {
    const bool of_sums = std::any_of(a.in.begin(), a.in.end(), [&](std::int32_t c) {
      const auto& tensors = role.channels[c].tensors;
      return !tensors.empty() && plan_.tensors[tensors[0]].dtype == DType::sum64;
    });
    // A channel of parameters has as many f32 values as the update has elements.
    const double of_update = static_cast<double>(kernels::AdamW::update_bytes(size_of(of_sums ? DType::sum64 : DType::f32))) / 4;
    double bytes = 0;
    for (auto c : a.kind == PlanActor::Kind::digest ? a.in : a.out)
      bytes += static_cast<double>(role.channels[c].bytes) * (a.kind == PlanActor::Kind::update ? of_update : 1);
    if (a.kind == PlanActor::Kind::norm)
      for (auto c : a.in)
        if (role.channels[c].kind != PlanChannel::Kind::parameter) bytes += static_cast<double>(role.channels[c].bytes);
    if (a.gathers()) bytes /= static_cast<double>(plan_.meshes[plan_.tensors[plan_.params[a.params[0].param].tensor].mesh].axis_size("dp"));
    a.cost_s = plan_.costs.kernel_s(a.kind == PlanActor::Kind::update ? "adamw" : a.kind == PlanActor::Kind::norm ? "square_sums" : "digest", 0, bytes);
  }
  if (a.kind == PlanActor::Kind::snapshot || a.kind == PlanActor::Kind::writer) {
    // Parameters and their state, read and written once; the places of a node write at the same time.
    const double writers = std::min(plan_.workers(), plan_.costs.places_per_node);
    const PlanActor& snapshot = a.kind == PlanActor::Kind::snapshot ? a : role.actors[role.channels[a.in[0]].writer];
    const double bytes = kernels::AdamW::saved_values() * static_cast<double>(role.channels[snapshot.in[0]].bytes) / static_cast<double>(plan_.dp_width(role.stage));
    a.cost_s = &a == &snapshot ? plan_.costs.kernel_s("snapshot", 0, 2 * bytes) : bytes * writers / plan_.costs.disk_bytes_per_s;
  }
  // A step of a program is over at a place when every actor is done whose outputs no actor of the program there reads.
  a.closes_step = a.kind != PlanActor::Kind::update;
  for (auto c : a.out)
    for (const auto& r : role.channels[c].readers)
      if (role.actors[r.actor].program == a.program && role.channels[c].kind != PlanChannel::Kind::turn) a.closes_step = false;
  if (a.kind == PlanActor::Kind::digest || a.kind == PlanActor::Kind::snapshot)
    for (const auto& t : role.channels[a.in[0]].tensors)
      for (std::size_t p = 0; p < plan_.params.size(); ++p)
        if (plan_.params[p].stored() == t)
          a.params.push_back({static_cast<std::int32_t>(p), static_cast<std::int32_t>(a.params.size()), {}});
}

}  // namespace troupe::runtime
