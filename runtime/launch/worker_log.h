// What a worker tells its log of the plan that it runs.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/session/control.h"

namespace troupe::runtime {

/// The actors that `rank` builds, its memory, and the exchanges in which it takes part: at level debug.
void log_graph(const Plan& plan, Rank rank);
/// What the session has ordered: programs that begin at level debug, steps of training and commits at level trace.
void log_order(const Plan& plan, const ToWorker& order);

}  // namespace troupe::runtime
