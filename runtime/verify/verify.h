// Verification: what a plan must satisfy before a job starts. Each error names the culprit.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/stage_meshes.h"

namespace troupe::runtime {

/// Indices, ports, rates (the balance equations, channel by channel), slots, and room for every tensor: what a plan
/// that was read from outside must satisfy before it is instantiated.
Status check_structure(const Plan& plan);

/// A stage's ops are known, and their arguments have types, layouts and scratch memory that they accept. REQUIRES: the
/// plan has passed check_structure.
Status check_ops(const Plan& plan, std::int32_t stage, const kernels::OpSet& ops);

/// check_structure, the token game (token_game.h) with every program, of one that keeps state with some of its
/// microbatches, and an actor in each program that ends its steps.
/// App::check compares the plan's memory with what there is.
Status verify(const Plan& plan);

}  // namespace troupe::runtime
