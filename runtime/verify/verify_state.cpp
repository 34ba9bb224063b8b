// Op state, which ops keep from act to act: each its own bytes, in a program whose microbatches all come to the same
// place.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

Status check_state(const Plan& plan, std::int32_t stage, const PlanActor& a, std::int64_t& bytes) {
  auto refuse = [&](const std::string& what) { return invalid(fmt::format("stage {}: {}", stage, what)); };
  const std::string name = "actor '" + a.name + "' ";
  std::vector<const PlanOp*> keepers;
  for (const auto& op : a.ops)
    if (op.state_bytes != 0 || op.state_offset != 0) keepers.push_back(&op);
  if (a.op_state_bytes == 0 && keepers.empty()) return {};
  if (a.kind != PlanActor::Kind::segment || a.rate != Rate::microbatch)
    return refuse(name + "keeps state; segments that act once per microbatch do");
  if (!plan.programs[a.program].spec.stateful)
    return refuse(name + "keeps state from one microbatch to the next, and program '" + plan.programs[a.program].name +
                  "' is not stateful");
  if (a.op_state_bytes < 0 || a.op_state_bytes > bytes_max - bytes)
    return refuse(name + "keeps more state than any memory has");
  bytes += a.op_state_bytes;
  for (const auto* op : keepers)
    if (op->state_bytes < 0 || op->state_offset < 0 || op->state_offset % tensor_alignment != 0 ||
        op->state_offset > a.op_state_bytes - op->state_bytes)
      return refuse("op '" + op->name + "' of '" + a.name + "' has no room for its state");
  std::sort(keepers.begin(), keepers.end(),
            [](const PlanOp* x, const PlanOp* y) { return x->state_offset < y->state_offset; });
  for (std::size_t i = 1; i < keepers.size(); ++i)
    if (const PlanOp& before = *keepers[i - 1], &op = *keepers[i];
        op.state_offset < before.state_offset + before.state_bytes)
      return refuse("ops '" + before.name + "' and '" + op.name + "' of '" + a.name +
                    "' keep their states in the same place");
  return {};
}

}  // namespace troupe::runtime
