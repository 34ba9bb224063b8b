// Arguments that are well formed one by one, held against the job that they are for: arguments that ask for what
// the job does not have are refused, arguments that can have no effect are told. How a single argument is written:
// apps/argument_forms.h.
#pragma once

#include <string>
#include <vector>

#include "apps/job/planning.h"
#include "apps/lm/data.h"

namespace troupe::lm {

/// Error: a sample, a link, a device or a command for a worker is asked for that this job does not have, a checkpoint
/// of a run that computes nothing, or times of passes that do not go together. Names the argument. REQUIRES: mesh and
/// throttle of `p` are complete.
Status check_arguments(const JobArguments& a, const Prepared& p);

/// The warning where an evaluation of so many microbatches asks for more windows than `corpus` holds out; empty: there
/// are enough. `form`: how a user writes the number, "--batches {}".
std::string windows_warning(const std::string& form, std::int64_t batches, const Corpus& corpus,
                            const LmConfig& config);

/// A warning for each argument that cannot have an effect in a run of `config`, of steps [first, steps).
std::vector<std::string> useless_arguments(const JobArguments& a, const LmConfig& config, std::int64_t first,
                                           std::int64_t steps);

}  // namespace troupe::lm
