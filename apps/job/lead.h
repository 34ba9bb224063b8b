// The lead of a run in its store (--store).
#pragma once

#include <memory>

#include "apps/job/job.h"
#include "runtime/store/leadership.h"

namespace troupe::lm {

/// The run's lead, which is taken as it listens for agents; null: the run has no store. REQUIRES of the arguments that
/// run_number is set. Error (`invalid`): the options of the store, or an address at which no agent of another machine
/// finds the run; (`io`): this executable cannot be read.
Expected<std::shared_ptr<runtime::Leadership>> make_lead(const JobArguments& arguments);

/// The arguments of a process that takes the lead of a run over, as the run's own with what `taken` says. The process
/// ends with the agent that has started it. Error (`invalid`): the output folder is not the run's.
Status take_over(JobArguments& arguments, const TakenOver& taken);

}  // namespace troupe::lm
