// mse_loss(y, target){scale} -> loss (1) f64 = sum of (y - target)^2
// mse_loss_grad(y, target){scale} -> dy = 2 scale (y - target)
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_mse_loss(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("mse_loss", in, 2));
  TROUPE_TRY(expect(in[0] == in[1], "mse_loss", "y and target of one shape", in));
  return std::vector<TensorType>{{DType::f64, {1}}};
}

Inferred infer_mse_loss_grad(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("mse_loss_grad", in, 2));
  TROUPE_TRY(expect(in[0] == in[1], "mse_loss_grad", "y and target of one shape", in));
  return std::vector<TensorType>{in[0]};
}

Status mse_loss_gradient(GradContext& g) {
  if (g.needs_grad(1)) return invalid("mse_loss has no gradient for its target: pass the trained value as input 0");
  if (!g.needs_grad(0)) return {};
  g.grad_in(0, g.emit("mse_loss_grad", {g.in(0), g.in(1)}, only(g.attrs(), {"scale", "unit"}))[0]);
  return {};
}

}  // namespace

std::vector<OpDef> mse_loss_ops() {
  OpDef loss{.name = "mse_loss", .inputs = 2, .outputs = 1, .infer = infer_mse_loss};
  loss.attributes = {real_attribute("scale"), integer_attribute("unit")};
  loss.signatures = [](Types in, const Attrs& attrs) {
    std::vector<Signature> table;
    add_rows(table, 0, rank(in[0]), "ss", "p", rank(in[0]) - 1, attrs.integer("unit", 1));
    return table;
  };
  loss.gradient = mse_loss_gradient;
  loss.cost = per_element(3);
  loss.scratch_bytes = [](Types in, Types, const Attrs&) {
    return (elements(in[0].shape) / element_block + 1) * size_of(DType::f64);
  };
  loss.is_loss = true;
  loss.cpu = cpu::mse_loss;

  OpDef grad{.name = "mse_loss_grad", .inputs = 2, .outputs = 1, .infer = infer_mse_loss_grad};
  grad.attributes = {real_attribute("scale"), integer_attribute("unit")};
  grad.signatures = elementwise(2, 1);
  grad.cost = per_element(2);
  grad.cpu = cpu::mse_loss_grad;
  return {loss, grad};
}

}  // namespace troupe::kernels
