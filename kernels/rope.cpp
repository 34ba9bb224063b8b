// rope(x (B, T, H D)){head_dim: D, theta, inverse, unit: columns that stay together besides D} -> (B, T, H D)
//
// A rotation: its gradient is the rotation backwards. The position is the index along dim 1.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("rope", in, 1));
  const auto D = attrs.integer("head_dim");
  TROUPE_TRY(expect(rank(in[0]) == 3 && D > 0 && D % 2 == 0 && in[0].shape[2] % D == 0, "rope",
                    "x (B, T, H * head_dim) with an even head_dim", in));
  return std::vector<TensorType>{in[0]};
}

Status gradient(GradContext& g) {
  if (g.grad_out(0) == no_value || !g.needs_grad(0)) return {};
  Attrs attrs = g.attrs();
  attrs.set("inverse", std::int64_t{attrs.integer("inverse") == 0});
  g.grad_in(0, g.emit("rope", {g.grad_out(0)}, attrs)[0]);
  return {};
}

}  // namespace

std::vector<OpDef> rope_ops() {
  OpDef op{.name = "rope", .inputs = 1, .outputs = 1, .infer = infer};
  op.signatures = [](Types, const Attrs& attrs) {
    std::vector<Signature> table;
    const auto D = attrs.integer("head_dim"), unit = attrs.integer("unit", D);
    add_rows(table, 0, 3, "s", "s", 2, unit);
    if (unit != D) table.push_back(row({Sbp::S(2, D)}, {Sbp::S(2, D)}));
    table.push_back(row({Sbp::P()}, {Sbp::P()}));
    return table;
  };
  op.gradient = gradient;
  op.cost = per_element(3);
  op.scratch_bytes = [](Types in, Types, const Attrs& attrs) {
    return in[0].shape[1] * attrs.integer("head_dim") * size_of(DType::f32);
  };
  op.cpu = cpu::rope;
  return {op};
}

}  // namespace troupe::kernels
