// lm_head_stats(x (B, T, C), w (V, C), targets (B, T) i32){groups} -> stats (G, B, T, 3)
// lm_head_loss(stats, x, w, targets){groups, scale} -> loss (1) f64, lse (B, T)
// lm_head_loss_grad(x, w, targets, lse){groups, scale} -> dx (B, T, C), dw (V, C)
//
// loss = sum over rows of -log softmax(x w^T)[target]; rows with a negative target count for nothing. A target of V or
// more is an error of lm_head_stats (OpDef::check).
// Gradients carry "scale" (1 / divisor). Logits exist one chunk of rows at a time.
//
// The vocabulary is cut into G groups of u = ceil(V / groups) words (8 groups by default; the last may be shorter).
// stats[g, b, t] = (m, the group's largest logit; the sum of exp(logit - m); the target's logit, 0 where it is not in
// the group). lm_head_loss adds up the groups in their order, so that the places of a model axis may hold whole
// groups of w and the bits do not depend on the number of places: Megatron-LM's vocabulary-parallel cross-entropy
// (Shoeybi et al., 2019) with a fixed order of addition. x and w are inputs of lm_head_loss because its gradient, made
// from lse, needs them.
#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {

std::int64_t vocabulary_unit(std::int64_t vocabulary, const Attrs& attrs) {
  const auto groups = std::max<std::int64_t>(attrs.integer("groups", 8), 1);
  return std::max<std::int64_t>((vocabulary + groups - 1) / groups, 1);
}

namespace {

using S = Sbp;

/// `head` = x, w, targets.
Status expect_head(const std::string& op, Types head, Types in) {
  return expect(rank(head[0]) == 3 && rank(head[1]) == 2 && last(head[0]) == head[1].shape[1] && rank(head[2]) == 2 &&
                    head[2].shape[0] == head[0].shape[0] && head[2].shape[1] == head[0].shape[1],
                op, "x (B, T, C), w (V, C) and targets (B, T)", in);
}

TensorType stats_type(Types head, const Attrs& attrs) {
  const auto V = head[1].shape[0], u = vocabulary_unit(V, attrs);
  return {DType::f32, {(V + u - 1) / u, head[2].shape[0], head[2].shape[1], 3}};
}

Inferred infer_stats(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("lm_head_stats", in, 3, {2}));
  TROUPE_TRY(expect_head("lm_head_stats", in, in));
  return std::vector<TensorType>{stats_type(in, attrs)};
}

Inferred infer_lm_head_loss(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("lm_head_loss", in, 4, {3}));
  TROUPE_TRY(expect_head("lm_head_loss", in.subspan(1), in));
  TROUPE_TRY(expect(in[0] == stats_type(in.subspan(1), attrs), "lm_head_loss",
                    "stats as lm_head_stats makes them of the others", in));
  return std::vector<TensorType>{{DType::f64, {1}}, {DType::f32, in[3].shape}};
}

Inferred infer_lm_head_loss_grad(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("lm_head_loss_grad", in, 4, {2}));
  TROUPE_TRY(expect_head("lm_head_loss_grad", in, in));
  TROUPE_TRY(expect(in[3].shape == in[2].shape, "lm_head_loss_grad", "lse (B, T)", in));
  return std::vector<TensorType>{in[0], in[1]};
}

/// Emits no gradient of stats: lm_head_loss_grad has the whole gradient of the loss with respect to x and w.
Status lm_head_loss_gradient(GradContext& g) {
  if (!g.needs_grad(1) && !g.needs_grad(2)) return {};
  const auto grads = g.emit("lm_head_loss_grad", {g.in(1), g.in(2), g.in(3), g.out(1)},
                            only(g.attrs(), {"groups", "scale"}));
  for (int i = 0; i < 2; ++i)
    if (g.needs_grad(i + 1)) g.grad_in(i + 1, grads[static_cast<std::size_t>(i)]);
  return {};
}

/// Terms that the product of `rows` rows adds to an element of dw.
std::int64_t blocks(std::int64_t rows) { return (rows + gemm_k_block - 1) / gemm_k_block; }

/// Bytes of one chunk of logits, for the rows of w that a place has.
std::int64_t scratch(Types in, Types, const Attrs&) {
  const auto V = in[1].shape[0];
  return cpu::lm_head_chunk(V) * V * size_of(DType::f32);
}

/// `products` matrix products of rows x V x C, and the logits written and read once each.
OpCost lm_head_loss_cost(double products, Types in, Types out) {
  const double rows = static_cast<double>(rows_of(in[0])), V = static_cast<double>(in[1].shape[0]);
  return {products * 2 * rows * V * static_cast<double>(last(in[0])), bytes_of(in, out) + 8 * rows * V};
}

}  // namespace

std::vector<OpDef> lm_head_loss_ops() {
  OpDef stats{.name = "lm_head_stats", .inputs = 3, .outputs = 1, .infer = infer_stats};
  stats.attributes = {integer_attribute("groups")};
  stats.signatures = [](Types in, const Attrs& attrs) {
    std::vector<Signature> table;
    for (int d = 0; d < 2; ++d) table.push_back(row({S::S(d), S::B(), S::S(d)}, {S::S(d + 1)}));
    table.push_back(row({S::B(), S::S(0, vocabulary_unit(in[1].shape[0], attrs)), S::B()}, {S::S(0)}));
    return table;
  };
  stats.cost = [](Types in, Types out, const Attrs&) { return lm_head_loss_cost(1, in, out); };
  stats.scratch_bytes = scratch;
  stats.check = ids_below("lm_head_stats", "target", 2, 1, 0);
  stats.cpu = cpu::lm_head_stats;

  OpDef loss{.name = "lm_head_loss", .inputs = 4, .outputs = 2, .infer = infer_lm_head_loss};
  loss.attributes = {integer_attribute("groups"), real_attribute("scale")};
  loss.signatures = [](Types in, const Attrs& attrs) {
    std::vector<Signature> table;
    for (int d = 0; d < 2; ++d) table.push_back(row({S::S(d + 1), S::S(d), S::B(), S::S(d)}, {S::P(), S::S(d)}));
    const auto u = vocabulary_unit(in[2].shape[0], attrs);
    table.push_back(row({S::B(), S::B(), S::S(0, u), S::B()}, {S::B(), S::B()}));
    return table;
  };
  loss.gradient = lm_head_loss_gradient;
  loss.cost = [](Types in, Types, const Attrs&) { return OpCost{0, bytes_of(in.first(1), {})}; };
  loss.scratch_bytes = [](Types in, Types, const Attrs&) { return elements(in[3].shape) * size_of(DType::f64); };
  loss.is_loss = true;
  loss.cpu = cpu::lm_head_loss;

  OpDef grad{.name = "lm_head_loss_grad", .inputs = 4, .outputs = 2, .infer = infer_lm_head_loss_grad};
  grad.attributes = {integer_attribute("groups"), real_attribute("scale")};
  grad.signatures = [](Types in, const Attrs& attrs) {
    std::vector<Signature> table;
    add_rows(table, 0, 2, "sbss", "sp");
    const auto u = vocabulary_unit(in[1].shape[0], attrs);
    table.push_back(row({S::B(), S::S(0, u), S::B(), S::B()}, {S::P(), S::S(0, u)}));
    return table;
  };
  grad.cost = [](Types in, Types out, const Attrs&) { return lm_head_loss_cost(3, in, out); };
  grad.scratch_bytes = scratch;
  grad.accumulates = 2;
  grad.terms = [](Types in, const Attrs&) {
    const std::int64_t rows = rows_of(in[0]), chunk = cpu::lm_head_chunk(in[1].shape[0]);
    return rows / chunk * blocks(chunk) + blocks(rows % chunk);
  };
  grad.cpu = cpu::lm_head_loss_grad;
  return {stats, loss, grad};
}

}  // namespace troupe::kernels
