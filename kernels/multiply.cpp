// multiply(a, b) -> a b, element by element; scale(x, s (1)) -> x s.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Status multiply_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value) return {};
  for (int i = 0; i < 2; ++i)
    if (g.needs_grad(i)) g.grad_in(i, g.emit("multiply", {g.grad_out(0), g.in(1 - i)}, only(g.attrs(), {"unit"}))[0]);
  return {};
}

Inferred infer_scale(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("scale", in, 2));
  const Shape one = {1};
  TROUPE_TRY(expect(in[1].shape == one, "scale", "a tensor and a number (1)", in));
  return std::vector{in[0]};
}

std::vector<Signature> scale_rows(Types in, const Attrs& attrs) {
  std::vector<Signature> table = elementwise(1, 1)(in, attrs);
  for (Signature& split : table) split.in.push_back(Sbp::B());
  table.push_back(row({Sbp::P(), Sbp::B()}, {Sbp::P()}));
  return table;
}

}  // namespace

std::vector<OpDef> multiply_ops() {
  OpDef multiply{.name = "multiply",
                 .inputs = 2,
                 .outputs = 1,
                 .infer = one_shape("multiply", 2, "two tensors of one shape; scale takes a number")};
  multiply.attributes = {integer_attribute("unit")};
  multiply.signatures = elementwise(2, 1);
  multiply.gradient = multiply_gradient;
  multiply.cost = per_element(1);
  multiply.cpu = cpu::multiply;
  OpDef scale{.name = "scale", .inputs = 2, .outputs = 1, .infer = infer_scale};
  scale.attributes = {integer_attribute("unit")};
  scale.signatures = scale_rows;
  scale.cost = per_element(1);
  scale.cpu = cpu::scale;
  return {multiply, scale};
}

}  // namespace troupe::kernels
