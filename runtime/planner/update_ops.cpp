// The ops with which an update makes parameters (Graph::next): where each finds what it reads, and leaves what it
// makes.
#include "runtime/plan/update_ops.h"

#include <algorithm>

#include "devices/base/check.h"
#include "runtime/planner/group_pass.h"

namespace troupe::runtime {

namespace {

using Where = PlanOperand::Where;

/// The ops of one group.
class UpdatePlanner {
 public:
  /// `in_place`: the slot has one version. `arriving`: by tensor that is handed over or kept, the update's port where
  /// it arrives.
  UpdatePlanner(PlanDraft& draft, const ParameterGroup& group, bool in_place,
                const std::map<std::int32_t, std::int32_t>& arriving)
      : draft_(draft), group_(group), in_place_(in_place), arriving_(arriving) {}

  std::vector<PlanOp> run() {
    find_always();
    if (in_place_) copy_what_is_overwritten();
    const bool any_adamw = std::any_of(group_.params.begin(), group_.params.end(),
                                       [&](std::size_t p) { return !draft_.plan.params[p].by_ops; });
    if (any_adamw) add(update_ops::adamw, group_.name, {}, {});
    for (const LoweredUpdate* update : group_.updates)
      for (const LoweredUpdateNode& n : update->nodes)
        if (n.kind != UpdateNode::Kind::handed && n.kind != UpdateNode::Kind::kept) add(*update, n);
    copy_next_versions();
    return std::move(ops_);
  }

 private:
  /// Parameters that are made of nothing but what is handed over or kept: in void steps, too.
  void find_always() {
    for (std::size_t before = 1; is_always_.size() != before;) {
      before = is_always_.size();
      for (const LoweredUpdate* update : group_.updates)
        for (const auto& [param, v] : update->makes)
          if (v.param < 0 ? arriving_.count(v.tensor) > 0 : !v.next && is_always_.count(v.param) > 0)
            is_always_.insert(param);
    }
  }

  /// Each copy before the one that overwrites, in place, what it reads. Where they go round, one is set aside.
  void copy_next_versions() {
    std::vector<std::pair<std::int32_t, UpdateValue>> left;
    for (const LoweredUpdate* update : group_.updates)
      for (const auto& makes : update->makes)
        if (written_.insert(makes.first).second) left.push_back(makes);
    while (!left.empty()) {
      const auto is_read = [&](std::int32_t param) {
        return std::any_of(left.begin(), left.end(), [&](const auto& makes) {
          return makes.first != param && makes.second.param == param && !makes.second.next;
        });
      };
      auto next = std::find_if(left.begin(), left.end(), [&](const auto& makes) { return !is_read(makes.first); });
      if (next == left.end()) {
        next = left.begin();
        if (in_place_ && before_.count(next->first) == 0) set_aside(next->first);
      }
      copy(operand(next->second), slot(next->first, Where::out), is_always_.count(next->first) > 0);
      left.erase(next);
    }
  }

  /// In place AdamW overwrites what ops or copies still read.
  void copy_what_is_overwritten() {
    std::set<std::int32_t> overwritten;
    for (const LoweredUpdate* update : group_.updates) {
      for (const LoweredUpdateNode& n : update->nodes)
        for (const UpdateValue& v : n.in)
          if (v.param >= 0 && !v.next && !draft_.plan.params[v.param].by_ops) overwritten.insert(v.param);
      for (const auto& [param, v] : update->makes)
        if (v.param >= 0 && v.param != param && !v.next && !draft_.plan.params[v.param].by_ops)
          overwritten.insert(v.param);
    }
    for (const std::int32_t p : overwritten) set_aside(p);
  }

  void set_aside(std::int32_t p) {
    PlanTensor t = draft_.plan.tensors[update_ops::part_of(draft_.plan.params[p])];
    const std::string name = t.name + ".before";
    const std::int32_t tensor = draft_.add_tensor(std::move(t), name);
    copy(slot(p, Where::in), scratch(tensor), is_always_.count(p) > 0);
    before_[p] = tensor;
  }

  void add(const LoweredUpdate& update, const LoweredUpdateNode& n) {
    std::vector<PlanOperand> in, out;
    for (const UpdateValue& v : n.in) in.push_back(operand(v));
    for (const std::int32_t t : n.out) {
      // Where the version before stays, the first parameter that is made of a value takes it where it lies.
      const auto direct = std::find_if(update.makes.begin(), update.makes.end(), [&](const auto& makes) {
        return makes.second.tensor == t && written_.count(makes.first) == 0;
      });
      if (in_place_ || n.kind != UpdateNode::Kind::op || direct == update.makes.end()) {
        out.push_back(scratch(t));
      } else {
        written_.insert(direct->first);
        out.push_back(made_[t] = slot(direct->first, Where::out));
      }
    }
    Attrs attrs = n.attrs;
    if (n.kind == UpdateNode::Kind::gradient) attrs.set(update_ops::param_of_gradient, index_of(n.param));
    add(name_of(n), n.name, std::move(in), std::move(out), std::move(attrs));
  }

  static std::string name_of(const LoweredUpdateNode& n) {
    switch (n.kind) {
      case UpdateNode::Kind::gradient: return update_ops::gradient;
      case UpdateNode::Kind::learning_rate: return update_ops::learning_rate;
      case UpdateNode::Kind::number: return update_ops::number;
      case UpdateNode::Kind::op:
      case UpdateNode::Kind::updated:
      case UpdateNode::Kind::handed:
      case UpdateNode::Kind::kept: break;  // operands, no ops
    }
    return n.op;
  }

  void add(const std::string& op, const std::string& name, std::vector<PlanOperand> in, std::vector<PlanOperand> out,
           Attrs attrs = {}) {
    ops_.push_back({op, name, std::move(attrs), std::move(in), std::move(out)});
  }
  void copy(const PlanOperand& from, const PlanOperand& to, bool always) {
    Attrs attrs;
    if (always) attrs.set(update_ops::always, std::int64_t{1});
    add(update_ops::copy, draft_.plan.tensors[to.tensor].name + ".copy", {from}, {to}, std::move(attrs));
  }

  std::int32_t index_of(std::int32_t param) const {
    const auto& all = group_.params;
    return static_cast<std::int32_t>(std::find(all.begin(), all.end(), static_cast<std::size_t>(param)) - all.begin());
  }
  PlanOperand slot(std::int32_t param, Where where) const {
    const std::int32_t port = where == Where::in ? update_ops::own_version : 0;
    return {where, port, index_of(param), 0, update_ops::part_of(draft_.plan.params[param])};
  }
  static PlanOperand scratch(std::int32_t tensor) { return {Where::scratch, 0, 0, 0, tensor}; }
  PlanOperand operand(const UpdateValue& v) const {
    if (const auto arrives = arriving_.find(v.tensor); v.param < 0 && arrives != arriving_.end())
      return {Where::in, arrives->second, 0, 0, v.tensor};
    if (v.param < 0) {
      const auto made = made_.find(v.tensor);
      return made == made_.end() ? scratch(v.tensor) : made->second;
    }
    if (const auto before = before_.find(v.param); before != before_.end() && !v.next) return scratch(before->second);
    return slot(v.param, v.next ? Where::out : Where::in);
  }

  PlanDraft& draft_;
  const ParameterGroup& group_;
  const bool in_place_;
  const std::map<std::int32_t, std::int32_t>& arriving_;
  std::set<std::int32_t> is_always_;
  std::vector<PlanOp> ops_;
  std::map<std::int32_t, std::int32_t> before_;  // parameter -> its version before, copied
  std::map<std::int32_t, PlanOperand> made_;     // tensor -> the parameter of the slot that it is
  std::set<std::int32_t> written_;               // parameters that have their next version
};

}  // namespace

void GroupPass::hand_over(const LoweredUpdateNode& handed, Ports& ports) {
  const std::int32_t stored = plan().params[handed.param].stored();
  PlanExchange x;
  x.name = plan().params[handed.param].name + ".to." + group_.name;
  x.program = group_.program;
  x.rate = Rate::step;
  x.moves.push_back({stored, handed.out[0]});
  std::set<std::int32_t> roles(group_.stages.begin(), group_.stages.end());
  const auto from = plan().stages_on(plan().tensors[stored].mesh);
  roles.insert(from.begin(), from.end());
  for (const auto& [stage, end] : draft_.add_exchange(std::move(x), {roles.begin(), roles.end()}, 0, false)) {
    if (const auto home = draft_.home(stage, stored)) draft_.add_reader(home->channel, end);
    if (update_.count(stage) == 0) continue;
    note_port(stage, handed.out[0], ports);
    add_result(PlanChannel::Kind::activation, handed.out, end, {update_.at(stage)});
  }
}

void GroupPass::keep(const LoweredUpdateNode& kept, Ports& ports) {
  for (const auto& [stage, update] : update_) {
    note_port(stage, kept.out[0], ports);
    add_result(PlanChannel::Kind::kept, kept.out, edges_.writer[kept.out[0]].at(stage), {update});
  }
}

void GroupPass::note_port(std::int32_t stage, std::int32_t tensor, Ports& ports) {
  const auto port = static_cast<std::int32_t>(draft_.at(update_.at(stage)).in.size());
  const auto same = ports.emplace(tensor, port).first;
  ASSERT(same->second == port, group_.name, stage, same->second, port);  // its stages' updates have equal ports
}

void GroupPass::add_update_ops(const Ports& arriving) {
  std::vector<PlanOp> ops = UpdatePlanner(draft_, group_, !keeps_version_, arriving).run();
  const std::int64_t tensors = place_scratch(draft_, ops);
  std::int64_t own = 0;
  double seconds = 0;
  for (const PlanOp& op : ops) {
    std::vector<TensorType> in, out;
    for (const auto& o : op.in) in.push_back(local_type(draft_, o.tensor));
    for (const auto& o : op.out) out.push_back(local_type(draft_, o.tensor));
    const kernels::OpDef none;
    const kernels::OpDef& def = update_ops::is_own(op) ? none : *draft_.graph.ops().find(op.op);
    if (def.scratch_bytes) own = std::max(own, def.scratch_bytes(in, out, op.attrs));
    const auto cost = op_cost(def, in, out, op.attrs);
    if (op.op != update_ops::adamw) seconds += plan().costs.kernel_s(op.op, cost.flops, cost.bytes);
  }
  for (const auto& [stage, at] : update_) {
    PlanActor& update = draft_.at(at);
    update.ops = ops;
    update.op_scratch_offset = tensors;
    update.scratch_bytes = tensors + aligned(own);
    update.cost_s = seconds;
  }
}

}  // namespace troupe::runtime
