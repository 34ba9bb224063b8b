// The ops of updates: each parameter is made once, by AdamW or by an op, of what is there.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/plan/update_ops.h"
#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

using Where = PlanOperand::Where;

class UpdateCheck : private StageView {
 public:
  UpdateCheck(const Plan& plan, std::int32_t stage, const PlanActor& a)
      : StageView(plan, stage), a_(a), in_place_(role_.channels[a.out[0]].slots == 1) {}

  Status run() {
    std::set<std::int32_t> by_ops;  // indices into PlanActor::params
    for (std::int32_t i = 0; i < std::ssize(a_.params); ++i)
      if (param(i).by_ops) by_ops.insert(i);
    if (a_.ops.empty()) {
      if (by_ops.empty()) return {};
      return refuse("'" + a_.name + "' has no op that makes parameter '" + param(*by_ops.begin()).name + "'");
    }
    for (const PlanOp& op : a_.ops) TROUPE_TRY(check(op));
    if (by_ops.size() < a_.params.size() && !adamw_)
      return refuse("'" + a_.name + "' has ops, and none of them is AdamW, which makes some of its parameters");
    for (std::size_t port = 0; port < a_.in.size(); ++port)
      if (in(a_, static_cast<std::int32_t>(port)).kind == PlanChannel::Kind::kept && kept_.count(port) == 0)
        return refuse("'" + a_.name + "' makes no parameter of what '" + in(a_, static_cast<std::int32_t>(port)).name +
                      "' has kept");
    for (const std::int32_t i : by_ops)
      if (made_.count(i) == 0)
        return refuse("'" + a_.name + "' has no op that makes parameter '" + param(i).name + "'");
    return {};
  }

 private:
  const PlanParam& param(std::int32_t index) const { return plan_.params[a_.params[index].param]; }

  Status check(const PlanOp& op) {
    const std::string name = "op '" + op.name + "' of '" + a_.name + "' ";
    TROUPE_TRY(check_own(op, name));
    for (const PlanOperand& o : op.in) {
      if (o.where == Where::scratch) continue;
      if (o.where == Where::in && o.port != update_ops::own_version) {
        if (const auto kind = in(a_, o.port).kind;
            kind == PlanChannel::Kind::activation || kind == PlanChannel::Kind::kept) {
          if (kind == PlanChannel::Kind::kept && op.op == update_ops::copy && op.out[0].where == Where::out &&
              among(op.out[0].index, a_.params.size()) && param(op.out[0].index).kept)
            kept_.insert(static_cast<std::size_t>(o.port));
          continue;
        }
        return refuse(name + "reads channel '" + in(a_, o.port).name + "', which hands nothing over and keeps nothing");
      }
      const PlanParam& p = param(o.index);
      if (o.where == Where::out && (p.by_ops ? made_.count(o.index) == 0 : !adamw_))
        return refuse(name + "reads the next version of parameter '" + p.name + "' before it is made");
      if (o.where == Where::in && in_place_ && (p.by_ops ? made_.count(o.index) > 0 : adamw_))
        return refuse(name + "reads parameter '" + p.name + "' as it was, and the next version lies there already");
    }
    for (const auto* side : {&op.in, &op.out})
      for (const PlanOperand& o : *side) {
        const std::int32_t mesh = plan_.tensors[update_ops::part_of(param(0))].mesh;
        if (plan_.tensors[o.tensor].mesh != mesh)
          return refuse(name + "has '" + plan_.tensors[o.tensor].name +
                        "', which is not on the mesh of its parameters");
        for (const Sbp& sbp : plan_.tensors[o.tensor].sbp)
          if (sbp.is_partial())
            return refuse(name + "has the partial sum '" + plan_.tensors[o.tensor].name +
                          "', and an update adds none up");
      }
    for (const PlanOperand& o : op.out) {
      if (o.where == Where::scratch) continue;
      const PlanParam& p = param(o.index);
      if (in_place_ && op.op != update_ops::copy)
        return refuse(name + "writes parameter '" + p.name + "' where it still lies as it was: copies alone do");
      if (!p.by_ops) return refuse(name + "makes parameter '" + p.name + "', which AdamW makes");
      if (!made_.insert(o.index).second) return refuse(name + "makes parameter '" + p.name + "' once more");
    }
    return {};
  }

  /// What the ops of Troupe's own take.
  Status check_own(const PlanOp& op, const std::string& name) {
    if (!update_ops::is_own(op)) return {};
    const auto wrong = [&] { return refuse(name + "(" + op.op + ") has other arguments than it takes"); };
    if (op.op == update_ops::adamw) {
      if (adamw_ || !op.in.empty() || !op.out.empty()) return wrong();
      adamw_ = true;
      return {};
    }
    if (op.out.size() != 1) return wrong();
    const PlanTensor& to = plan_.tensors[op.out[0].tensor];
    if (op.op == update_ops::copy) {
      if (op.in.size() != 1) return wrong();
      const PlanTensor& from = plan_.tensors[op.in[0].tensor];
      const auto& ranks = plan_.meshes[stage_].ranks;
      const bool same = from.dtype == to.dtype && from.rate == to.rate && from.mesh == to.mesh &&
                        std::all_of(ranks.begin(), ranks.end(), [&](Rank r) {
                          return plan_.extent(op.in[0].tensor, r) == plan_.extent(op.out[0].tensor, r);
                        });
      return same ? Status() : wrong();
    }
    if (!op.in.empty() || op.out[0].where != Where::scratch || to.dtype != DType::f32) return wrong();
    if (op.op == update_ops::gradient) {
      const auto index = op.attrs.integer(update_ops::param_of_gradient, -1);
      if (index < 0 || index >= std::ssize(a_.params)) return wrong();
      const auto& ref = a_.params[static_cast<std::size_t>(index)];
      const PlanTensor& part = plan_.tensors[update_ops::part_of(plan_.params[ref.param])];
      const bool fits = !ref.grads.empty() && to.shape == part.shape && to.sbp == part.sbp && to.mesh == part.mesh;
      return fits ? Status() : wrong();
    }
    const bool of_step = op.op == update_ops::learning_rate || op.op == update_ops::number;
    const bool everywhere = std::all_of(to.sbp.begin(), to.sbp.end(), [](Sbp sbp) { return sbp.is_broadcast(); });
    return of_step && to.shape == Shape{1} && everywhere ? Status() : wrong();
  }

  const PlanActor& a_;
  const bool in_place_;
  bool adamw_ = false;
  std::set<std::int32_t> made_;  // indices into PlanActor::params
  std::set<std::size_t> kept_;   // ports whose kept microbatches are copied into a parameter
};

}  // namespace

Status check_update_ops(const Plan& plan, std::int32_t stage, const PlanActor& update) {
  return UpdateCheck(plan, stage, update).run();
}

}  // namespace troupe::runtime
