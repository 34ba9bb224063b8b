// add(a, b) -> a + b. The gradient of a and of b is the output's: no op is emitted.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Status add_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value) return {};
  for (int i = 0; i < 2; ++i)
    if (g.needs_grad(i)) g.grad_in(i, g.grad_out(0));
  return {};
}

}  // namespace

std::vector<OpDef> add_ops() {
  OpDef op{.name = "add", .inputs = 2, .outputs = 1, .infer = one_shape("add", 2, "two tensors of one shape")};
  op.attributes = {integer_attribute("unit")};
  op.signatures = [split = elementwise(2, 1)](Types in, const Attrs& attrs) {
    auto table = split(in, attrs);
    table.push_back(row({Sbp::P(), Sbp::P()}, {Sbp::P()}));
    return table;
  };
  op.gradient = add_gradient;
  op.cost = per_element(1);
  op.cpu = cpu::add;
  return {op};
}

}  // namespace troupe::kernels
