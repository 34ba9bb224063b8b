// dropout(x){p, rng} -> x / (1 - p) with probability 1 - p, else 0
//
// "rng" is the logical name of the forward op: forward and backward draw from the same key, so the gradient
// is the same op on dy and no mask is kept. Linear in x, for a given mask.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_dropout(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("dropout", in, 1));
  const double p = attrs.real("p");
  TROUPE_TRY(expect(rank(in[0]) >= 1 && p >= 0 && p < 1, "dropout", "x (B, ...) and 0 <= p < 1", in));
  return std::vector<TensorType>{in[0]};
}

Status dropout_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value || !g.needs_grad(0)) return {};
  g.grad_in(0, g.emit("dropout", {g.grad_out(0)}, g.attrs())[0]);
  return {};
}

}  // namespace

std::vector<OpDef> dropout_ops() {
  OpDef op{.name = "dropout", .inputs = 1, .outputs = 1, .infer = infer_dropout};
  op.attributes = {real_attribute("p"), integer_attribute("unit")};
  op.random = true;
  op.signatures = [split = elementwise(1, 1)](Types in, const Attrs& attrs) {
    auto table = split(in, attrs);
    table.push_back(row({Sbp::P()}, {Sbp::P()}));
    return table;
  };
  op.gradient = dropout_gradient;
  op.cost = per_element(15);
  op.cpu = cpu::dropout;
  return {op};
}

}  // namespace troupe::kernels
