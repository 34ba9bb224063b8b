#include "runtime/planner/lowered.h"

namespace troupe::runtime {

kernels::OpCost op_cost(const kernels::OpDef& def, const std::vector<TensorType>& in,
                        const std::vector<TensorType>& out, const Attrs& attrs) {
  if (def.cost) return def.cost(in, out, attrs);
  kernels::OpCost cost;
  for (const auto* side : {&in, &out})
    for (const auto& t : *side) cost.bytes += static_cast<double>(elements(t.shape) * size_of(t.dtype));
  return cost;
}

}  // namespace troupe::runtime
