// rmsnorm(x (..., C), w (C)){eps} -> y (..., C), rstd (...)
// rmsnorm_dx(dy, x, w, rstd) -> dx (..., C)
// rmsnorm_dw(dy, x, rstd) -> dw (C)
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Shape without_last(Shape shape) {
  shape.pop_back();
  return shape;
}

Inferred infer_rmsnorm(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("rmsnorm", in, 2));
  TROUPE_TRY(expect(rank(in[0]) >= 2 && in[1].shape == Shape{last(in[0])}, "rmsnorm", "x (..., C) and w (C)", in));
  return std::vector<TensorType>{in[0], {DType::f32, without_last(in[0].shape)}};
}

Inferred infer_rmsnorm_dx(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("rmsnorm_dx", in, 4));
  TROUPE_TRY(expect(rank(in[1]) >= 2 && in[0] == in[1] && in[2].shape == Shape{last(in[1])} &&
                        in[3].shape == without_last(in[1].shape),
                    "rmsnorm_dx", "dy (..., C), x (..., C), w (C) and rstd (...)", in));
  return std::vector<TensorType>{in[1]};
}

Inferred infer_rmsnorm_dw(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("rmsnorm_dw", in, 3));
  TROUPE_TRY(expect(rank(in[1]) >= 2 && in[0] == in[1] && in[2].shape == without_last(in[1].shape), "rmsnorm_dw",
                    "dy (..., C), x (..., C) and rstd (...)", in));
  return std::vector<TensorType>{{DType::f32, {last(in[1])}}};
}

Status rmsnorm_gradient(GradContext& g) {
  const Value dy = g.grad_out(0);
  if (dy == no_value) return {};
  if (g.needs_grad(0)) g.grad_in(0, g.emit("rmsnorm_dx", {dy, g.in(0), g.in(1), g.out(1)}, {})[0]);
  if (g.needs_grad(1)) g.grad_in(1, g.emit("rmsnorm_dw", {dy, g.in(0), g.out(1)}, {})[0]);
  return {};
}

}  // namespace

std::vector<OpDef> rmsnorm_ops() {
  OpDef y{.name = "rmsnorm", .inputs = 2, .outputs = 2, .infer = infer_rmsnorm};
  y.attributes = {real_attribute("eps")};
  y.signatures = rows_split("sb", "ss");
  y.gradient = rmsnorm_gradient;
  y.cost = per_element(4);
  y.cpu = cpu::rmsnorm;

  OpDef dx{.name = "rmsnorm_dx", .inputs = 4, .outputs = 1, .infer = infer_rmsnorm_dx};
  dx.signatures = rows_split("ssbs", "s");
  dx.cost = per_element(7);
  dx.cpu = cpu::rmsnorm_dx;

  OpDef dw{.name = "rmsnorm_dw", .inputs = 3, .outputs = 1, .infer = infer_rmsnorm_dw};
  dw.signatures = rows_split("sss", "p");
  dw.cost = per_element(3);
  dw.accumulates = 1;
  dw.cpu = cpu::rmsnorm_dw;
  return {y, dx, dw};
}

}  // namespace troupe::kernels
