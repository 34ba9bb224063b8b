// accumulate(x) -> out = x, or exact sums = or += x: how a weight gradient becomes terms when the op that made it has
// no kernel that adds them (a user-defined op, say). The graph inserts it.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_accumulate(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("accumulate", in, 1));
  return std::vector<TensorType>{in[0]};
}

}  // namespace

std::vector<OpDef> accumulate_ops() {
  OpDef op{.name = "accumulate", .inputs = 1, .outputs = 1, .infer = infer_accumulate};
  op.attributes = {integer_attribute("unit")};
  op.signatures = [split = elementwise(1, 1)](Types in, const Attrs& attrs) {
    auto table = split(in, attrs);
    table.push_back(row({Sbp::P()}, {Sbp::P()}));
    return table;
  };
  op.cost = per_element(1);
  op.accumulates = 1;
  op.cpu = cpu::accumulate;
  return {op};
}

}  // namespace troupe::kernels
