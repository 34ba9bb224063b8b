// Verification: what a plan must satisfy before anything starts. Each refusal names the culprit.
#pragma once

#include "runtime/plan.h"

namespace troupe::runtime {

/// Indices, ports, rates (the balance equations, channel by channel), slots: what a plan that was read from outside
/// must satisfy before it is instantiated. It trusts that offsets leave room for their tensors.
Status check_structure(const Plan& plan);

/// check_structure, the token game (token_game.h) with every program, and the memory of every place against
/// `memory_bytes_max` (0: not checked).
Status verify(const Plan& plan, std::int64_t memory_bytes_max = 0);

}  // namespace troupe::runtime
