// delay(x) -> x: what a microbatch reads of an earlier one (Graph::delay); zeros where there is none.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_delay(Types in, const Attrs&) {
  TROUPE_TRY(expect(in.size() == 1, "delay", "one tensor", in));
  return std::vector{in[0]};
}

}  // namespace

std::vector<OpDef> delay_ops() {
  OpDef op{.name = "delay", .inputs = 1, .outputs = 1, .infer = infer_delay};
  op.cpu = cpu::delay;
  return {op};
}

}  // namespace troupe::kernels
