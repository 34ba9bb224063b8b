// The graph between deduction and planning: every op knows its stage and the layouts of its arguments,
// every change of layout is a boxing node. Internal to the compiler: compile/ makes it, planner/ reads it.
#pragma once

#include "runtime/plan/plan.h"

namespace troupe::runtime {

struct LoweredNode {
  enum class Kind : std::uint8_t { op, actor, feed, report, boxing };
  Kind kind = Kind::op;
  std::string op, name;
  Attrs attrs;
  std::vector<std::int32_t> in, out;  ///< tensors of the plan
  std::int32_t mesh = 0;              ///< of the places that run it; boxing: where it ends
  std::int32_t virtual_stage = 0;
  std::int32_t unit = 0;
  std::int32_t program = 0;
  bool backward = false;
  Rate rate = Rate::microbatch;
};

/// A parameter as lowered: its tensor and the gradients of its uses.
struct LoweredParam {
  std::int32_t tensor = -1;
  std::int32_t unit = 0;
  std::vector<std::int32_t> stages;  ///< ascending
  std::vector<std::int32_t> grads;   ///< one tensor per use, in graph order
};

struct Lowered {
  std::vector<LoweredNode> nodes;
  std::vector<LoweredParam> params;
  std::vector<std::int32_t> producer;  ///< per tensor: node, or -1 (parameter)
};

/// Cost of one op at the largest place of its stage.
kernels::OpCost op_cost(const kernels::OpDef& def, const std::vector<TensorType>& in,
                        const std::vector<TensorType>& out, const Attrs& attrs);

}  // namespace troupe::runtime
