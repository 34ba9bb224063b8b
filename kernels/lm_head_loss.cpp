// lm_head_loss(x (B, T, C), w (V, C), targets (B, T) i32){scale} -> loss (1) f64, lse (B, T)
// lm_head_loss_grad(x, w, targets, lse){scale} -> dx (B, T, C), dw (V, C)
//
// loss = sum over rows of -log softmax(x w^T)[target]; rows with a negative target count for nothing.
// Gradients carry "scale" (1 / divisor). Logits exist one chunk of rows at a time.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Status expect_head(const std::string& op, Types in) {
  return expect(rank(in[0]) == 3 && rank(in[1]) == 2 && last(in[0]) == in[1].shape[1] && rank(in[2]) == 2 &&
                    in[2].shape[0] == in[0].shape[0] && in[2].shape[1] == in[0].shape[1],
                op, "x (B, T, C), w (V, C) and targets (B, T)", in);
}

Inferred infer_loss(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("lm_head_loss", in, 3, {2}));
  TROUPE_TRY(expect_head("lm_head_loss", in));
  return std::vector<TensorType>{{DType::f64, {1}}, {DType::f32, in[2].shape}};
}

Inferred infer_grad(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("lm_head_loss_grad", in, 4, {2}));
  TROUPE_TRY(expect_head("lm_head_loss_grad", in));
  TROUPE_TRY(expect(in[3].shape == in[2].shape, "lm_head_loss_grad", "lse (B, T)", in));
  return std::vector<TensorType>{in[0], in[1]};
}

Status gradient(GradContext& g) {
  if (!g.needs_grad(0) && !g.needs_grad(1)) return {};
  const auto grads = g.emit("lm_head_loss_grad", {g.in(0), g.in(1), g.in(2), g.out(1)}, only(g.attrs(), {"scale"}));
  for (int i = 0; i < 2; ++i)
    if (g.needs_grad(i)) g.grad_in(i, grads[static_cast<std::size_t>(i)]);
  return {};
}

std::int64_t scratch(Types in, Types, const Attrs&) {
  const auto V = in[1].shape[0], chunk = cpu::lm_head_chunk(V);
  return chunk * size_of(DType::f64) + chunk * V * size_of(DType::f32);
}

/// `products` matrix products of rows x V x C, and the logits written and read once each.
OpCost cost(double products, Types in, Types out) {
  const double rows = static_cast<double>(rows_of(in[0])), V = static_cast<double>(in[1].shape[0]);
  return {products * 2 * rows * V * static_cast<double>(last(in[0])), bytes_of(in, out) + 8 * rows * V};
}

}  // namespace

std::vector<OpDef> lm_head_loss_ops() {
  OpDef loss{.name = "lm_head_loss", .inputs = 3, .outputs = 2, .infer = infer_loss};
  loss.signatures = [](Types, const Attrs&) {
    std::vector<Signature> table;
    add_rows(table, 0, 2, "sbs", "ps");
    return table;
  };
  loss.gradient = gradient;
  loss.cost = [](Types in, Types out, const Attrs&) { return cost(1, in, out); };
  loss.scratch_bytes = scratch;
  loss.is_loss = true;
  loss.cpu = cpu::lm_head_loss;

  OpDef grad{.name = "lm_head_loss_grad", .inputs = 4, .outputs = 2, .infer = infer_grad};
  grad.signatures = [](Types, const Attrs&) {
    std::vector<Signature> table;
    add_rows(table, 0, 2, "sbss", "sp");
    return table;
  };
  grad.cost = [](Types in, Types out, const Attrs&) { return cost(3, in, out); };
  grad.scratch_bytes = scratch;
  grad.accumulates = 2;
  grad.cpu = cpu::lm_head_loss_grad;
  return {loss, grad};
}

}  // namespace troupe::kernels
