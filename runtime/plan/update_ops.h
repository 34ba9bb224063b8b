// The ops of an update actor that makes parameters by ops (Graph::next), in order. An operand that is no scratch memory
// is a parameter of the update's slot (its output 0), by index: `in`: as it is before the update; `out`: as the next
// version has it. In a plan that does not keep the version before, both are the same memory.
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
/// (x) -> x
inline constexpr const char* copy = "update.copy";

/// Whether the op is one of these, and none that an application registers.
inline bool is_own(const PlanOp& op) { return op.op.rfind("update.", 0) == 0; }
/// The tensor that says which part of a parameter a place updates.
inline std::int32_t part_of(const PlanParam& param) { return param.share >= 0 ? param.share : param.tensor; }

}  // namespace troupe::runtime::update_ops
