// orthogonalize(x (M, N)){steps} -> about U V^T of x = U S V^T: the Newton-Schulz iteration of Muon (Jordan et al.,
// 2024).
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_orthogonalize(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("orthogonalize", in, 1));
  TROUPE_TRY(expect(rank(in[0]) == 2, "orthogonalize", "a matrix", in));
  if (const auto steps = attrs.integer("steps", 5); steps < 0 || steps > 100)
    return invalid("orthogonalize expects 0 to 100 steps; got " + std::to_string(steps));
  return std::vector{in[0]};
}

std::int64_t shorter(const TensorType& x) { return std::min(x.shape[0], x.shape[1]); }

}  // namespace

std::vector<OpDef> orthogonalize_ops() {
  OpDef op{.name = "orthogonalize", .inputs = 1, .outputs = 1, .infer = infer_orthogonalize};
  op.attributes = {integer_attribute("steps")};
  op.cost = [](Types in, Types out, const Attrs& attrs) {
    const auto n = static_cast<double>(shorter(in[0])), elements = static_cast<double>(troupe::elements(in[0].shape));
    const auto steps = static_cast<double>(attrs.integer("steps", 5));
    return OpCost{steps * (4 * elements * n + 2 * n * n * n), (1 + 2 * steps) * bytes_of(in, out)};
  };
  op.scratch_bytes = [](Types in, Types, const Attrs&) {
    return 4 * (elements(in[0].shape) + 2 * shorter(in[0]) * shorter(in[0]));
  };
  op.cpu = cpu::orthogonalize;
  return {op};
}

}  // namespace troupe::kernels
