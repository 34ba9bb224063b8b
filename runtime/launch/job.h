// The parent's side of a job: starts the workers, polls links, logs, deaths and signals, lets the session decide, ends
// all.
#pragma once

#include "runtime/agents/launcher.h"
#include "runtime/launch/app.h"

namespace troupe::runtime {

/// Runs a job to its end. A worker may take `killed_ms` to end after SIGKILL; then the job leaves it, and the error
/// names it. REQUIRES: App::check has passed, and the options begin where options.checkpoint.restore was saved.
JobResult run_job(const Plan& plan, JobOptions options, int killed_ms = killed_ms_max);

}  // namespace troupe::runtime
