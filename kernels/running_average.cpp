// running_average(average, x, number (1)){decay} -> x at number 1, later decay average + (1 - decay) x: of what an
// update makes (Graph::next).
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_running_average(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("running_average", in, 3));
  const Shape one = {1};
  TROUPE_TRY(expect(in[1] == in[0] && in[2].shape == one, "running_average",
                    "two tensors of one shape, and a number (1)", in));
  if (const double decay = attrs.real("decay"); !(decay >= 0 && decay <= 1))
    return invalid("running_average expects a decay of 0 to 1; got " + std::to_string(decay));
  return std::vector{in[0]};
}

std::vector<Signature> running_average_rows(Types in, const Attrs& attrs) {
  std::vector<Signature> table = elementwise(2, 1)(in, attrs);
  for (Signature& split : table) split.in.push_back(Sbp::B());
  return table;
}

}  // namespace

std::vector<OpDef> running_average_ops() {
  OpDef op{.name = "running_average", .inputs = 3, .outputs = 1, .infer = infer_running_average};
  op.attributes = {real_attribute("decay"), integer_attribute("unit")};
  op.signatures = running_average_rows;
  op.cost = per_element(3);
  op.cpu = cpu::running_average;
  return {op};
}

}  // namespace troupe::kernels
