// weighted_sum(a, b){a, b} -> a A + b B: running averages and steps of an optimizer that a graph writes (Graph::next).
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Status weighted_sum_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value) return {};
  const char* weight_of[] = {"a", "b"};
  for (int i = 0; i < 2; ++i)
    if (g.needs_grad(i)) {
      Attrs attrs = only(g.attrs(), {"unit"});
      attrs.set("a", g.attrs().real(weight_of[i], 1));
      attrs.set("b", 0.0);
      g.grad_in(i, g.emit("weighted_sum", {g.grad_out(0), g.grad_out(0)}, std::move(attrs))[0]);
    }
  return {};
}

}  // namespace

std::vector<OpDef> weighted_sum_ops() {
  OpDef op{.name = "weighted_sum",
           .inputs = 2,
           .outputs = 1,
           .infer = one_shape("weighted_sum", 2, "two tensors of one shape")};
  op.attributes = {real_attribute("a"), real_attribute("b"), integer_attribute("unit")};
  op.signatures = [split = elementwise(2, 1)](Types in, const Attrs& attrs) {
    auto table = split(in, attrs);
    table.push_back(row({Sbp::P(), Sbp::P()}, {Sbp::P()}));
    return table;
  };
  op.gradient = weighted_sum_gradient;
  op.cost = per_element(3);
  op.cpu = cpu::weighted_sum;
  return {op};
}

}  // namespace troupe::kernels
