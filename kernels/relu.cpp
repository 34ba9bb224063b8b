// relu(x) -> y = max(x, 0)
// relu_grad(dy, y) -> dx
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Status relu_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value || !g.needs_grad(0)) return {};
  g.grad_in(0, g.emit("relu_grad", {g.grad_out(0), g.out(0)}, only(g.attrs(), {"unit"}))[0]);
  return {};
}

}  // namespace

std::vector<OpDef> relu_ops() {
  OpDef forward{.name = "relu", .inputs = 1, .outputs = 1, .infer = one_shape("relu", 1)};
  forward.attributes = {integer_attribute("unit")};
  forward.signatures = elementwise(1, 1);
  forward.gradient = relu_gradient;
  forward.cost = per_element(1);
  forward.cpu = cpu::relu;

  OpDef grad{
      .name = "relu_grad", .inputs = 2, .outputs = 1, .infer = one_shape("relu_grad", 2, "dy and y of one shape")};
  grad.attributes = {integer_attribute("unit")};
  grad.signatures = [split = elementwise(2, 1)](Types in, const Attrs& attrs) {
    auto table = split(in, attrs);
    table.push_back(row({Sbp::P(), Sbp::B()}, {Sbp::P()}));  // linear in dy
    return table;
  };
  grad.cost = per_element(1);
  grad.cpu = cpu::relu_grad;
  return {forward, grad};
}

}  // namespace troupe::kernels
