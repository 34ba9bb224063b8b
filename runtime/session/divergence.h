// What ends a run as diverged (exit code 8): numbers that are not finite, and void steps in a row. Each function looks
// at one kind of number and returns the error that names the first that is wrong; ok where none is.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/report.h"
#include "devices/base/status.h"
#include "runtime/plan/plan.h"
#include "runtime/session/sum_scale.h"

namespace troupe::runtime {

/// Gradient terms, by the verdict on a step: one that is not finite, or the last of void_steps_max void steps.
/// `void_steps`: in a row, this one included. `loss`: of the verdict's microbatch, where a term is not finite.
Status check_terms(const Plan& plan, std::int64_t step, const StepVerdict& verdict, std::int32_t void_steps,
                   double loss);
/// The loss of a step, and its gradient norm before clipping.
Status check_step(std::int64_t step, double loss, double grad_norm);
/// Parameters after `steps` steps, of which the digest tells: no later step has a loss that would.
/// `not_finite`: an index of plan.params, -1: none.
Status check_digest(const Plan& plan, std::int64_t steps, std::int32_t not_finite);
/// Parameters and moments of a version, by the reports of the places that write it to disk (Report::Kind::shard).
/// Parameters are named before moments, then the first in the plan's order.
Status check_saved(const Plan& plan, std::int64_t version, const std::vector<actors::Report>& reports);

/// Returns the beginning of an error: "step 12: microbatch 3: a gradient term of 'layer0.q'", without the microbatch
/// where no place has reported one (StepTerms::no_microbatch).
std::string name_term(std::int64_t step, std::int32_t microbatch, const std::string& parameter);

}  // namespace troupe::runtime
