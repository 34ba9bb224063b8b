// swiglu(gate, up) -> silu(gate) * up (Shazeer, 2020)
// swiglu_grad(dh, gate, up) -> dgate, dup
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_swiglu(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("swiglu", in, 2));
  TROUPE_TRY(expect(in[0] == in[1], "swiglu", "gate and up of one shape", in));
  return std::vector<TensorType>{in[0]};
}

Inferred infer_swiglu_grad(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("swiglu_grad", in, 3));
  TROUPE_TRY(expect(in[0] == in[1] && in[1] == in[2], "swiglu_grad", "dh, gate and up of one shape", in));
  return std::vector<TensorType>{in[0], in[0]};
}

Status swiglu_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value) return {};
  const auto grads = g.emit("swiglu_grad", {g.grad_out(0), g.in(0), g.in(1)}, only(g.attrs(), {"unit"}));
  for (int i = 0; i < 2; ++i)
    if (g.needs_grad(i)) g.grad_in(i, grads[static_cast<std::size_t>(i)]);
  return {};
}

}  // namespace

std::vector<OpDef> swiglu_ops() {
  OpDef forward{.name = "swiglu", .inputs = 2, .outputs = 1, .infer = infer_swiglu};
  forward.attributes = {integer_attribute("unit")};
  forward.signatures = elementwise(2, 1);
  forward.gradient = swiglu_gradient;
  forward.cost = per_element(25);
  forward.cpu = cpu::swiglu;

  OpDef grad{.name = "swiglu_grad", .inputs = 3, .outputs = 2, .infer = infer_swiglu_grad};
  grad.attributes = {integer_attribute("unit")};
  grad.signatures = elementwise(3, 2);
  grad.cost = per_element(30);
  grad.cpu = cpu::swiglu_grad;
  return {forward, grad};
}

}  // namespace troupe::kernels
