// bias_add(x (..., N), b (N)) -> x + b
// bias_grad(dy (..., N)) -> db (N)
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

using S = Sbp;

Inferred infer_add(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("bias_add", in, 2));
  TROUPE_TRY(expect(rank(in[0]) >= 1 && in[1].shape == Shape{last(in[0])}, "bias_add", "x (..., N) and b (N)", in));
  return std::vector<TensorType>{in[0]};
}

Inferred infer_bias_grad(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("bias_grad", in, 1));
  TROUPE_TRY(expect(rank(in[0]) >= 1, "bias_grad", "dy (..., N)", in));
  return std::vector<TensorType>{{DType::f32, {last(in[0])}}};
}

Status bias_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value) return {};
  if (g.needs_grad(0)) g.grad_in(0, g.grad_out(0));
  if (g.needs_grad(1)) g.grad_in(1, g.emit("bias_grad", {g.grad_out(0)}, only(g.attrs(), {"unit"}))[0]);
  return {};
}

}  // namespace

std::vector<OpDef> bias_ops() {
  OpDef forward{.name = "bias_add", .inputs = 2, .outputs = 1, .infer = infer_add};
  forward.attributes = {integer_attribute("unit")};
  forward.signatures = [](Types in, const Attrs& attrs) {
    const int d = rank(in[0]) - 1;
    const auto n = attrs.integer("unit", 1);
    std::vector<Signature> table;
    add_rows(table, 0, d, "sb", "s");
    table.push_back(row({S::S(d, n), S::S(0, n)}, {S::S(d, n)}));
    table.push_back(row({S::P(), S::P()}, {S::P()}));
    return table;
  };
  forward.gradient = bias_gradient;
  forward.cost = per_element(1);
  forward.cpu = cpu::bias_add;

  OpDef grad{.name = "bias_grad", .inputs = 1, .outputs = 1, .infer = infer_bias_grad};
  grad.attributes = {integer_attribute("unit")};
  grad.signatures = [](Types in, const Attrs& attrs) {
    const int d = rank(in[0]) - 1;
    const auto n = attrs.integer("unit", 1);
    std::vector<Signature> table;
    add_rows(table, 0, d, "s", "p");
    table.push_back(row({S::S(d, n)}, {S::S(0, n)}));
    table.push_back(row({S::P()}, {S::P()}));
    return table;
  };
  grad.cost = per_element(1);
  grad.accumulates = 1;
  grad.cpu = cpu::bias_grad;
  return {forward, grad};
}

}  // namespace troupe::kernels
