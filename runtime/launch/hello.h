// What each worker of a job is told before it starts, beside the plan.
#pragma once

#include <vector>

#include "runtime/launch/app.h"
#include "runtime/session/control.h"

namespace troupe::runtime {

/// By rank. Without options.net_devices workers use loopback, where all are on this machine without prefixes and
/// options.tls names no card's transport, and else what UCX chooses.
/// `save`: where the job saves checkpoints; none: as it is made. REQUIRES, with options.pin: as many cores as
/// compute threads (App::check).
std::vector<Hello> hellos(const JobOptions& options, Rank workers, const CheckpointTarget& save);

}  // namespace troupe::runtime
