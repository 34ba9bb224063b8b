// softmax_cross_entropy(logits (..., V), targets (...) i32){scale} -> loss (1) f64, lse (...)
// softmax_cross_entropy_grad(logits, targets, lse){scale} -> dlogits
//
// loss = sum over rows of -log softmax(logits)[target]; rows with a negative target count for nothing. A target of V or
// more is an error of softmax_cross_entropy (OpDef::check).
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Status expect_rows(const std::string& op, Types in) {
  Shape rows = in[0].shape;
  const bool any = !rows.empty();
  if (any) rows.pop_back();
  return expect(any && in[1].shape == rows, op, "logits (..., V) and targets (...)", in);
}

Inferred infer_softmax_cross_entropy(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("softmax_cross_entropy", in, 2, {1}));
  TROUPE_TRY(expect_rows("softmax_cross_entropy", in));
  return std::vector<TensorType>{{DType::f64, {1}}, {DType::f32, in[1].shape}};
}

Inferred infer_softmax_cross_entropy_grad(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("softmax_cross_entropy_grad", in, 3, {1}));
  TROUPE_TRY(expect_rows("softmax_cross_entropy_grad", in));
  TROUPE_TRY(expect(in[2].shape == in[1].shape, "softmax_cross_entropy_grad", "lse (...)", in));
  return std::vector<TensorType>{in[0]};
}

Status softmax_cross_entropy_gradient(GradContext& g) {
  if (!g.needs_grad(0)) return {};
  g.grad_in(0, g.emit("softmax_cross_entropy_grad", {g.in(0), g.in(1), g.out(1)}, only(g.attrs(), {"scale"}))[0]);
  return {};
}

}  // namespace

std::vector<OpDef> softmax_cross_entropy_ops() {
  OpDef loss{.name = "softmax_cross_entropy", .inputs = 2, .outputs = 2, .infer = infer_softmax_cross_entropy};
  loss.attributes = {real_attribute("scale")};
  loss.signatures = rows_split("ss", "ps");
  loss.gradient = softmax_cross_entropy_gradient;
  loss.cost = per_element(20);
  loss.scratch_bytes = [](Types in, Types, const Attrs&) { return rows_of(in[0]) * size_of(DType::f64); };
  loss.is_loss = true;
  loss.check = ids_below("softmax_cross_entropy", "target", 1, 0, -1);
  loss.cpu = cpu::softmax_cross_entropy;

  OpDef grad{
      .name = "softmax_cross_entropy_grad", .inputs = 3, .outputs = 1, .infer = infer_softmax_cross_entropy_grad};
  grad.attributes = {real_attribute("scale")};
  grad.signatures = rows_split("sss", "s");
  grad.cost = per_element(18);
  grad.cpu = cpu::softmax_cross_entropy_grad;
  return {loss, grad};
}

}  // namespace troupe::kernels
