// accumulate(x) -> out = x, or out += x: how a weight gradient joins its lane's sum when the op that made
// it cannot add in its own kernel (a user-defined one, say). The graph inserts it.
#include <cstring>

#include "kernels/ops.h"
#include "kernels/rules.h"
#include "kernels/vector.h"

namespace troupe::kernels {
namespace {

Inferred infer_accumulate(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("accumulate", in, 1));
  return std::vector<TensorType>{in[0]};
}

void cpu(const Call& c) {
  auto* out = c.out[0].as<float>();
  const auto* in = c.in[0].as<float>();
  if (c.accumulate) add_into(out, in, c.in[0].size(), *c.par);
  else std::memmove(out, in, static_cast<std::size_t>(c.in[0].bytes()));
}

}  // namespace

std::vector<OpDef> accumulate_ops() {
  OpDef op{.name = "accumulate", .inputs = 1, .outputs = 1, .infer = infer_accumulate};
  op.signatures = [split = elementwise(1, 1)](Types in, const Attrs& attrs) {
    auto table = split(in, attrs);
    table.push_back(row({Sbp::P()}, {Sbp::P()}));
    return table;
  };
  op.cost = per_element(1);
  op.accumulates = 1;
  op.cpu = cpu;
  return {op};
}

}  // namespace troupe::kernels
