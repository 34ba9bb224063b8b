// The ops of an update actor that makes parameters by ops (Graph::next), in order. An operand that is no scratch memory
// is a parameter of the update's slot (its output 0), by index: `in` at port `own_version`: as it is before the update;
// `out` at port 0: as the next version has it. In a plan that does not keep the version before, both are the same
// memory. `in` at another port is a tensor that an exchange has brought there (Graph::hand_over),
// or what the step's microbatches have left (Graph::step_delay).
#pragma once

#include "runtime/plan/plan.h"

namespace troupe::runtime::update_ops {

/// AdamW, for all parameters of the actor that no op makes.
inline constexpr const char* adamw = "update.adamw";
/// () -> the clipped gradient of the parameter that the attribute `param_of_gradient` names: an index into
/// PlanActor::params
inline constexpr const char* gradient = "update.gradient";
inline constexpr const char* param_of_gradient = "param";
/// () -> f32 (1)
inline constexpr const char* learning_rate = "update.learning_rate";
inline constexpr const char* number = "update.number";
/// (x) -> x; with the attribute `always` in void steps, too: what is handed over, or kept, needs no gradient
inline constexpr const char* copy = "update.copy";
inline constexpr const char* always = "always";

inline constexpr std::int32_t own_version = -1;
/// Whether the op is one of these, and none that an application registers.
inline bool is_own(const PlanOp& op) { return op.op.rfind("update.", 0) == 0; }
/// A row of an op's table, with all its splits in units so many times as large: where an op keeps elements apart, it
/// keeps groups of them apart.
inline kernels::Signature in_units(kernels::Signature row, std::int64_t times) {
  for (auto* side : {&row.in, &row.out})
    for (Sbp& sbp : *side)
      if (sbp.is_split()) sbp.unit *= times;
  return row;
}
/// By how much the units of a row are smaller than those of an argument that lies as `have`; 1: not at all.
inline std::int64_t times_of(const Sbp& row, const Sbp& have) {
  const bool coarser = row.is_split() && have.is_split() && row.dim == have.dim && row.unit > 0 &&
                       have.unit % row.unit == 0;
  return coarser ? have.unit / row.unit : 1;
}

/// The tensor that says which part of a parameter a place updates.
inline std::int32_t part_of(const PlanParam& param) { return param.share >= 0 ? param.share : param.tensor; }

}  // namespace troupe::runtime::update_ops
