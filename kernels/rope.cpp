// rope(x (B, T, H D)){head_dim: D, theta, inverse, unit: columns that stay together besides D} -> (B, T, H D)
// rope_at(x (B, T, H D), position i32 (1)){head_dim, theta, inverse, unit} -> (B, T, H D)
//
// A rotation: its gradient is the inverse rotation. The position is the index along dim 1; in rope_at, which has no
// gradient, that index plus the input `position`.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Status expect_heads(const std::string& op, Types in, const Attrs& attrs) {
  const auto D = attrs.integer("head_dim");
  return expect(rank(in[0]) == 3 && D > 0 && D % 2 == 0 && in[0].shape[2] % D == 0, op,
                "x (B, T, H * head_dim) with an even head_dim", in);
}

Inferred infer_rope(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("rope", in, 1));
  TROUPE_TRY(expect_heads("rope", in, attrs));
  return std::vector<TensorType>{in[0]};
}

Inferred infer_at(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("rope_at", in, 2, {1}));
  TROUPE_TRY(expect_heads("rope_at", in, attrs));
  TROUPE_TRY(expect(in[1].shape == Shape{1}, "rope_at", "a position (1)", in));
  return std::vector<TensorType>{in[0]};
}

Status rope_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value || !g.needs_grad(0)) return {};
  Attrs attrs = g.attrs();
  attrs.set("inverse", std::int64_t{attrs.integer("inverse") == 0});
  g.grad_in(0, g.emit("rope", {g.grad_out(0)}, attrs)[0]);
  return {};
}

/// The signatures of x and the result.
std::vector<Signature> signatures(const Attrs& attrs) {
  std::vector<Signature> table;
  const auto D = attrs.integer("head_dim"), unit = attrs.integer("unit", D);
  add_rows(table, 0, 3, "s", "s", 2, unit);
  if (unit != D) table.push_back(row({Sbp::S(2, D)}, {Sbp::S(2, D)}));
  table.push_back(row({Sbp::P()}, {Sbp::P()}));
  return table;
}

}  // namespace

std::vector<OpDef> rope_ops() {
  OpDef op{.name = "rope", .inputs = 1, .outputs = 1, .infer = infer_rope};
  op.attributes = {integer_attribute("head_dim"), integer_attribute("inverse"), integer_attribute("unit"),
                   real_attribute("theta")};
  op.signatures = [](Types, const Attrs& attrs) { return signatures(attrs); };
  op.gradient = rope_gradient;
  op.cost = per_element(3);
  op.scratch_bytes = [](Types in, Types, const Attrs& attrs) {
    return in[0].shape[1] * attrs.integer("head_dim") * size_of(DType::f32);
  };
  op.cpu = cpu::rope;

  OpDef at = op;
  at.name = "rope_at", at.inputs = 2, at.infer = infer_at, at.gradient = nullptr;
  at.signatures = [](Types, const Attrs& attrs) {
    auto table = signatures(attrs);
    for (auto& row : table) row.in.push_back(Sbp::B());
    return table;
  };
  return {op, at};
}

}  // namespace troupe::kernels
