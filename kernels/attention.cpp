// attention(q (B, T, H D), k (B, T, KV D), v (B, T, KV D)){head_dim: D} -> o (B, T, H D), lse (B, T, H)
// attention_grad(do, q, k, v, o, lse){head_dim} -> dq, dk, dv
//
// Exact and causal, scale 1 / sqrt(D). Grouped queries: query head h reads key-value head h / (H / KV).
//
// Two ways to divide heads: whole key-value heads with their groups, or query heads alone with all keys and values at
// hand, whose gradients are then partial sums. With more places than key-value heads only dividing query heads alone
// keeps all busy.
#include "kernels/cpu/kernels.h"
#include "kernels/heads.h"
#include "kernels/ops.h"

namespace troupe::kernels {
namespace {

TensorType lse_type(const TensorType& q, const Attrs& attrs) {
  return {DType::f32, {q.shape[0], q.shape[1], q.shape[2] / attrs.integer("head_dim")}};
}

Inferred infer_attention(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("attention", in, 3));
  TROUPE_TRY(expect_heads("attention", in, 0, attrs));
  return std::vector<TensorType>{in[0], lse_type(in[0], attrs)};
}

Inferred infer_attention_grad(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("attention_grad", in, 6));
  TROUPE_TRY(expect_heads("attention_grad", in, 1, attrs));
  TROUPE_TRY(expect(in[0] == in[1] && in[4] == in[1] && in[5] == lse_type(in[1], attrs), "attention_grad",
                    "do and o like q, and lse (B, T, H)", in));
  return std::vector<TensorType>{in[1], in[2], in[3]};
}

Status attention_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value) return {};
  const auto grads = g.emit("attention_grad", {g.grad_out(0), g.in(0), g.in(1), g.in(2), g.out(0), g.out(1)},
                            only(g.attrs(), {"head_dim"}));
  for (int i = 0; i < 3; ++i)
    if (g.needs_grad(i)) g.grad_in(i, grads[static_cast<std::size_t>(i)]);
  return {};
}

/// `products` matrix products of T x T / 2 x D for each sample and head.
OpCost attention_cost(double products, const TensorType& q, Types in, Types out) {
  const double tokens = static_cast<double>(rows_of(q)), T = static_cast<double>(q.shape[1]);
  return {products * 2 * tokens * (T / 2) * static_cast<double>(last(q)), bytes_of(in, out)};
}

}  // namespace

std::vector<OpDef> attention_ops() {
  OpDef forward{.name = "attention", .inputs = 3, .outputs = 2, .infer = infer_attention};
  forward.attributes = {integer_attribute("head_dim")};
  forward.signatures = [](Types in, const Attrs& attrs) {
    const HeadSplit h(in[0], in[1], attrs);
    std::vector<Signature> table;
    add_rows(table, 0, 1, "sss", "ss");
    table.push_back(row({h.q, h.kv, h.kv}, {h.q, h.lse}));
    if (h.one != h.q) table.push_back(row({h.one, Sbp::B(), Sbp::B()}, {h.one, h.one_lse}));
    return table;
  };
  forward.gradient = attention_gradient;
  forward.cost = [](Types in, Types out, const Attrs&) { return attention_cost(2, in[0], in, out); };
  forward.cpu = cpu::attention;

  OpDef grad{.name = "attention_grad", .inputs = 6, .outputs = 3, .infer = infer_attention_grad};
  grad.attributes = {integer_attribute("head_dim")};
  grad.signatures = [](Types in, const Attrs& attrs) {
    const HeadSplit h(in[1], in[2], attrs);
    std::vector<Signature> table;
    add_rows(table, 0, 1, "ssssss", "sss");
    table.push_back(row({h.q, h.q, h.kv, h.kv, h.q, h.lse}, {h.q, h.kv, h.kv}));
    if (h.one != h.q)
      table.push_back(row({h.one, h.one, Sbp::B(), Sbp::B(), h.one, h.one_lse}, {h.one, Sbp::P(), Sbp::P()}));
    return table;
  };
  grad.cost = [](Types in, Types out, const Attrs&) { return attention_cost(5, in[1], in, out); };
  grad.cpu = cpu::attention_grad;
  return {forward, grad};
}

}  // namespace troupe::kernels
