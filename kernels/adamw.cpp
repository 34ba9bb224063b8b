// adamw(w, m, v, g, lr (1), number (1)){beta1, beta2, eps, weight_decay} -> w', m', v': an update as an op of a graph
// (Graph::next). What an update does by itself is the same function (kernels/optimizer.h).
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/optimizer.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_adamw(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("adamw", in, 6));
  const Shape one = {1};
  TROUPE_TRY(expect(in[1] == in[0] && in[2] == in[0] && in[3] == in[0] && in[4].shape == one && in[5].shape == one,
                    "adamw", "a parameter, two moments and a gradient of one shape, and two numbers (1)", in));
  return std::vector{in[0], in[0], in[0]};
}

std::vector<Signature> adamw_rows(Types in, const Attrs& attrs) {
  std::vector<Signature> table = elementwise(4, 3)(in, attrs);
  for (Signature& split : table) split.in.insert(split.in.end(), 2, Sbp::B());
  return table;
}

}  // namespace

std::vector<OpDef> adamw_ops() {
  OpDef op{.name = "adamw", .inputs = 6, .outputs = 3, .infer = infer_adamw};
  op.attributes = {real_attribute("beta1"), real_attribute("beta2"), real_attribute("eps"),
                   real_attribute("weight_decay"), integer_attribute("unit")};
  op.signatures = adamw_rows;
  // An update by itself is measured by its bytes alone, under the same name.
  op.cost = per_element(0);
  op.cpu = cpu::adamw;
  return {op};
}

}  // namespace troupe::kernels
