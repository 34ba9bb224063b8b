// delay(x) -> x: what a microbatch reads of an earlier one (Graph::delay); zeros where there is none.
// keep_microbatch, kept_microbatch: what the microbatches of a step leave for those of a later one (Graph::step_delay).
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_delay(Types in, const Attrs&) {
  TROUPE_TRY(expect(in.size() == 1, "delay", "one tensor", in));
  return std::vector{in[0]};
}

Inferred infer_keep(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect(in.size() == 1, "keep_microbatch", "one tensor", in));
  TensorType all = in[0];
  all.shape.insert(all.shape.begin(), attrs.integer("microbatches", 1));
  return std::vector{std::move(all)};
}

Inferred infer_kept(Types in, const Attrs&) {
  TROUPE_TRY(expect(in.size() == 1 && !in[0].shape.empty(), "kept_microbatch", "one tensor of a dim or more", in));
  return std::vector{TensorType{in[0].dtype, {in[0].shape.begin() + 1, in[0].shape.end()}}};
}

/// Of one microbatch, whatever the place has of others.
OpCost cost_of_one(Types in, Types out, const Attrs&) {
  const auto bytes = [](const TensorType& t) { return static_cast<double>(elements(t.shape) * size_of(t.dtype)); };
  return {0, 2 * std::min(bytes(in[0]), bytes(out[0]))};
}

}  // namespace

std::vector<OpDef> delay_ops() {
  OpDef op{.name = "delay", .inputs = 1, .outputs = 1, .infer = infer_delay};
  op.cpu = cpu::delay;
  OpDef keep{.name = "keep_microbatch",
             .inputs = 1,
             .outputs = 1,
             .attributes = {{integer_attribute("microbatches")}},
             .infer = infer_keep};
  keep.by_microbatch = true;
  keep.cost = cost_of_one;
  keep.cpu = cpu::keep_microbatch;
  OpDef kept{.name = "kept_microbatch", .inputs = 1, .outputs = 1, .infer = infer_kept};
  kept.by_microbatch = true;
  kept.cost = cost_of_one;
  kept.cpu = cpu::kept_microbatch;
  return {op, keep, kept};
}

}  // namespace troupe::kernels
