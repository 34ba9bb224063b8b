// multiply(a, b) -> a b, element by element; b may be one number.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

const Shape one_number = {1};

Inferred infer_multiply(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("multiply", in, 2));
  TROUPE_TRY(expect(in[1].shape == in[0].shape || in[1].shape == one_number, "multiply",
                    "two tensors of one shape, or a tensor and one of shape (1)", in));
  return std::vector{in[0]};
}

std::vector<Signature> multiply_rows(Types in, const Attrs& attrs) {
  if (in[1].shape != one_number || in[0].shape == one_number) return elementwise(2, 1)(in, attrs);
  std::vector<Signature> table = elementwise(1, 1)(in, attrs);
  for (Signature& split : table) split.in.push_back(Sbp::B());
  table.push_back(row({Sbp::P(), Sbp::B()}, {Sbp::P()}));
  return table;
}

}  // namespace

std::vector<OpDef> multiply_ops() {
  OpDef op{.name = "multiply", .inputs = 2, .outputs = 1, .infer = infer_multiply};
  op.attributes = {integer_attribute("unit")};
  op.signatures = multiply_rows;
  op.cost = per_element(1);
  op.cpu = cpu::multiply;
  return {op};
}

}  // namespace troupe::kernels
