// Operands: where each op finds its arguments; scratch memory by lifetime; ops' state.
#include <algorithm>

#include "devices/base/check.h"
#include "runtime/planner/passes.h"

namespace troupe::runtime {

TensorType local_type(const PlanDraft& draft, std::int32_t tensor) {
  const Layout l = draft.plan.layout(tensor, 0);
  return {l.dtype, l.extent_at(0).shape()};
}

namespace {

/// Where operands lie.
class Operands {
 public:
  Operands(const PlanDraft& draft, const Edges& edges, const Optimizers& optimizers)
      : draft_(draft), edges_(edges), optimizers_(optimizers) {}

  PlanOperand of(ActorRef who, std::int32_t tensor, bool writes) const {
    PlanOperand o;
    if (const auto it = optimizers_.gathered.find({who, tensor}); it != optimizers_.gathered.end()) tensor = it->second;
    o.tensor = tensor;
    const auto home = draft_.home(who.role, tensor);
    if (!home) {
      o.where = PlanOperand::Where::scratch;
      return o;
    }
    const bool own = writes || (draft_.low.producer[tensor] >= 0 && edges_.writer[tensor].at(who.role) == who);
    return lies(o, who, *home, own);
  }

  /// Of a tensor that `who` reads late; it may write it as well.
  PlanOperand late(ActorRef who, std::int32_t tensor) const {
    PlanOperand o;
    o.tensor = tensor;
    return lies(o, who, *draft_.home(who.role, tensor), false);
  }

 private:
  PlanOperand lies(PlanOperand o, ActorRef who, const Home& home, bool own) const {
    const auto& ports = own ? draft_.at(who).out : draft_.at(who).in;
    const auto port = std::find(ports.begin(), ports.end(), home.channel) - ports.begin();
    ASSERT(port < static_cast<std::ptrdiff_t>(ports.size()), draft_.at(who).name, draft_.plan.tensors[o.tensor].name);
    o.where = own ? PlanOperand::Where::out : PlanOperand::Where::in;
    o.port = static_cast<std::int32_t>(port);
    o.index = home.index;
    return o;
  }

  const PlanDraft& draft_;
  const Edges& edges_;
  const Optimizers& optimizers_;
};

}  // namespace

std::int64_t place_scratch(const PlanDraft& draft, std::vector<PlanOp>& ops) {
  std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> life;  // scratch tensor -> first, last op
  for (std::int32_t index = 0; index < std::ssize(ops); ++index)
    for (const auto* side : {&ops[index].in, &ops[index].out})
      for (const auto& o : *side)
        if (o.where == PlanOperand::Where::scratch) {
          auto [it, fresh] = life.try_emplace(o.tensor, index, index);
          it->second.second = index;
        }
  struct Block {
    std::int32_t tensor, first, last;
    std::int64_t offset, bytes;
  };
  std::vector<Block> placed;
  std::vector<std::pair<std::int32_t, std::int32_t>> order;  // by first use
  for (const auto& [t, l] : life) order.push_back({l.first, t});
  std::sort(order.begin(), order.end());
  std::int64_t total = 0;
  for (const auto& [first, t] : order) {
    Block b{t, first, life.at(t).second, 0, aligned(draft.local_bytes(t))};
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
          o.offset =
              std::find_if(placed.begin(), placed.end(), [&](const Block& b) { return b.tensor == o.tensor; })->offset;
  return total;
}

void fill_operands(PlanDraft& draft, Segments& segments, const Edges& edges, const Optimizers& optimizers) {
  const Lowered& low = draft.low;
  const Operands operands(draft, edges, optimizers);
  for (auto& [where, nodes] : segments.nodes) {
    std::sort(nodes.begin(), nodes.end());
    std::vector<PlanOp> ops;
    for (auto i : nodes) {
      const LoweredNode& n = low.nodes[i];
      PlanOp op{n.kind == LoweredNode::Kind::report ? "" : n.op, n.name, n.attrs, {}, {}};
      for (auto t : n.in) op.in.push_back(operands.of(where, t, false));
      if (n.delayed >= 0) op.in.push_back(operands.late(where, n.delayed));
      for (auto t : n.out) op.out.push_back(operands.of(where, t, true));
      ops.push_back(std::move(op));
    }
    PlanActor& actor = draft.at(where);
    actor.op_scratch_offset = place_scratch(draft, ops);
    std::int64_t own = 0;
    for (auto& op : ops) {
      if (op.op.empty()) continue;
      const auto* def = draft.graph.ops().find(op.op);
      std::vector<TensorType> in, out;
      for (const auto& o : op.in) in.push_back(local_type(draft, o.tensor));
      for (const auto& o : op.out) out.push_back(local_type(draft, o.tensor));
      if (def->scratch_bytes) own = std::max(own, def->scratch_bytes(in, out, op.attrs));
      if (def->state_bytes) {
        op.state_offset = actor.op_state_bytes;
        op.state_bytes = def->state_bytes(in, out, op.attrs);
        actor.op_state_bytes += aligned(op.state_bytes);
      }
      const auto cost = op_cost(*def, in, out, op.attrs);
      actor.cost_s += draft.plan.costs.kernel_s(op.op, cost.flops, cost.bytes);
    }
    actor.scratch_bytes = actor.op_scratch_offset + aligned(own);
    actor.ops = std::move(ops);
  }
  for (std::size_t i = 0; i < low.nodes.size(); ++i) {
    const LoweredNode& n = low.nodes[i];
    if (n.kind != LoweredNode::Kind::actor) continue;
    for (const auto& [role, actor] : segments.node_actor[i]) {
      PlanOp& op = draft.at(actor).ops[0];
      for (auto t : n.in) op.in.push_back(operands.of(actor, t, false));
      for (auto t : n.out) op.out.push_back(operands.of(actor, t, true));
    }
  }
}

}  // namespace troupe::runtime
