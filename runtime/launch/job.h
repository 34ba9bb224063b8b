// The parent's side of a job: starts the workers, polls links, logs, deaths and signals, lets the session decide, ends
// all.
#pragma once

#include "runtime/launch/app.h"

namespace troupe::runtime {

/// Runs a job to its end. REQUIRES: App::check has passed, and the options begin where options.checkpoint.restore was
/// saved.
JobResult run_job(const Plan& plan, JobOptions options);

}  // namespace troupe::runtime
