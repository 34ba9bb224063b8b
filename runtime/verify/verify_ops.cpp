// The ops of a stage against the ops that this program registers.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/plan/update_ops.h"
#include "runtime/verify/verify.h"

namespace troupe::runtime {

namespace {

/// Whether each dp coordinate has another part of the tensor. A microbatch's tensors are whole at one coordinate.
bool in_dp_parts(const Plan& plan, const PlanTensor& t) {
  const Mesh& mesh = plan.meshes[t.mesh];
  const int dp = dp_axis(mesh);
  return t.rate != Rate::microbatch && dp >= 0 && mesh.axes[dp].size > 1 && t.sbp[dp].is_split();
}

/// Of an end of a Graph::step_delay: a place has, and by its own microbatches, one part of the argument that has those
/// of the step.
Status check_by_microbatch(const Plan& plan, std::int32_t stage, const PlanActor& a, const PlanOp& op) {
  const PlanTensor& all = plan.tensors[(op.op == "keep_microbatch" ? op.out : op.in)[0].tensor];
  const ProgramSpec& spec = plan.spec(a.program);
  const int dp = dp_axis(plan.meshes[stage]);
  const bool own = all.rate == Rate::step && all.mesh == stage && !all.shape.empty() &&
                   all.shape[0] == spec.microbatches && a.rate == Rate::microbatch &&
                   a.kind == PlanActor::Kind::segment && plan.is_step_program(a.program) &&
                   (plan.dp_width(stage) == 1 || plan.dp_width(stage) == plan.programs[a.program].blocks);
  bool whole = own;
  for (std::size_t axis = 0; own && axis < all.sbp.size(); ++axis)
    whole &= plan.meshes[stage].axes[axis].size == 1 ||
             (static_cast<int>(axis) == dp ? all.sbp[axis] == Sbp::S(0) : all.sbp[axis].is_broadcast());
  const auto keeps = [&](const PlanParam& p) {
    return p.kept && p.program == a.program && p.stored() == op.in[0].tensor;
  };
  if (whole && op.op != "keep_microbatch" && std::none_of(plan.params.begin(), plan.params.end(), keeps))
    return invalid("op '" + op.name + "' (" + op.op + ") of '" + a.name + "' reads '" + all.name +
                   "', which no delay of its program keeps");
  if (whole) return {};
  return invalid("op '" + op.name + "' (" + op.op + ") of '" + a.name + "' works on '" + all.name +
                 "', which has not, at each place, the microbatches that the place runs");
}

}  // namespace

Status check_ops(const Plan& plan, std::int32_t stage, const kernels::OpSet& ops) {
  for (const auto& a : plan.roles[stage].actors)
    for (const auto& op : a.ops) {
      const bool update = a.kind == PlanActor::Kind::update;
      if (op.op.empty() || (!update && a.kind != PlanActor::Kind::segment) || update_ops::is_own(op)) continue;
      const std::string name = "op '" + op.name + "' ";
      const auto* def = ops.find(op.op);
      if (!def) return invalid(name + "is of kind '" + op.op + "', which this program does not register");
      if (static_cast<int>(op.in.size()) != def->inputs || static_cast<int>(op.out.size()) != def->outputs)
        return invalid(fmt::format("{}({}) has {} inputs and {} outputs; it needs {} and {}", name, op.op, op.in.size(),
                                   op.out.size(), def->inputs, def->outputs));
      for (const auto* side : {&op.in, &op.out})
        for (const auto& o : *side)
          if (!update && !def->by_microbatch && in_dp_parts(plan, plan.tensors[o.tensor]))
            return invalid(name + "(" + op.op + ") works on '" + plan.tensors[o.tensor].name +
                           "', of which a place has a part only");
      if (def->by_microbatch) TROUPE_TRY(check_by_microbatch(plan, stage, a, op));
      std::vector<TensorType> in, out, local_in, local_out;
      auto type = [&](const PlanOperand& o, std::vector<TensorType>& whole, std::vector<TensorType>& local) {
        const PlanTensor& t = plan.tensors[o.tensor];
        whole.push_back({t.dtype, t.shape});
        local.push_back({t.dtype, plan.layout(o.tensor, 0).extent_at(0).shape()});
      };
      for (const auto& o : op.in) type(o, in, local_in);
      for (const auto& o : op.out) type(o, out, local_out);
      const auto inferred = def->infer(in, op.attrs);
      if (!inferred.ok()) return inferred.status().in("op '" + op.name + "'");
      // An op that makes an f32 gradient may add it to an exact sum instead (OpDef::accumulates).
      for (std::size_t o = 0; o < out.size(); ++o)
        if (out[o].dtype == DType::sum64 && (def->accumulates >> o & 1)) out[o].dtype = DType::f32;
      for (std::size_t o = 0; o < out.size(); ++o)
        if (const PlanTensor& t = plan.tensors[op.out[o].tensor];
            plan.unreduced(t) && t.dtype == DType::f32 && def->terms && def->terms(in, op.attrs) > 1)
          return invalid(name + "(" + op.op + ") adds several terms to '" + t.name + "', which is no exact sum");
      if (*inferred != out)
        return invalid(name + "(" + op.op + ") writes a tensor of another type than its inputs give");
      // Tensors of a shared unit lie on the mesh of all stages.
      const Mesh& mesh = plan.meshes[op.out.empty() ? stage : plan.tensors[op.out[0].tensor].mesh];
      auto legal = def->signatures ? def->signatures(in, op.attrs) : std::vector<kernels::Signature>{};
      legal.push_back({std::vector<Sbp>(in.size(), Sbp::B()), std::vector<Sbp>(out.size(), Sbp::B())});
      for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
        // An update's ops may keep rows apart along dp.
        if ((!update && static_cast<int>(axis) == dp_axis(mesh)) || mesh.axes[axis].size == 1) continue;
        // SBPs with different units are equal where they cut the same parts.
        auto lies = [&](const PlanOperand& o, const Sbp& wanted) {
          const PlanTensor& t = plan.tensors[o.tensor];
          NdSbp there = t.sbp;
          there[axis] = wanted;
          return same_layout(t.sbp, there, t.shape, plan.meshes[t.mesh]);
        };
        const auto lie = [&](const kernels::Signature& row) {
          for (std::size_t i = 0; i < op.in.size(); ++i)
            if (!lies(op.in[i], row.in[i])) return false;
          for (std::size_t o = 0; o < op.out.size(); ++o)
            if (!lies(op.out[o], row.out[o])) return false;
          return true;
        };
        const auto fits = [&](const kernels::Signature& row) {
          if (lie(row)) return true;
          for (std::size_t i = 0; update && i < op.in.size(); ++i)
            if (const auto times = update_ops::times_of(row.in[i], plan.tensors[op.in[i].tensor].sbp[axis]);
                times > 1 && lie(update_ops::in_units(row, times)))
              return true;
          return false;
        };
        if (std::none_of(legal.begin(), legal.end(), fits))
          return invalid(name + "(" + op.op + ") has arguments on axis " + mesh.axes[axis].name +
                         " whose SBPs are no signature of it");
      }
      if (def->state_bytes && update) return invalid(name + "(" + op.op + ") keeps state of its own, in an update");
      if (def->state_bytes && !plan.programs[a.program].spec.stateful)
        return invalid(name + "(" + op.op + ") keeps state from one microbatch to the next, and program '" +
                       plan.programs[a.program].name + "' is not stateful");
      const std::int64_t state = def->state_bytes ? def->state_bytes(local_in, local_out, op.attrs) : 0;
      if (state > op.state_bytes)
        return invalid(
            fmt::format("{}({}) needs {} bytes of state; '{}' has {}", name, op.op, state, a.name, op.state_bytes));
      const std::int64_t scratch = def->scratch_bytes ? def->scratch_bytes(local_in, local_out, op.attrs) : 0;
      if (scratch > a.scratch_bytes - a.op_scratch_offset)
        return invalid(fmt::format("{}({}) needs {} bytes of scratch; '{}' has {}", name, op.op, scratch, a.name,
                                   a.scratch_bytes - a.op_scratch_offset));
    }
  return {};
}

}  // namespace troupe::runtime
