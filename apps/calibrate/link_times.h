// How long a message between two workers on this machine takes, as a job sees it: actors, transport and all.
#pragma once

#include "placement/cost.h"
#include "runtime/launch/app.h"

namespace troupe::calibrate {

/// Registers the actor that relays: before serve_if_worker.
void register_actors(runtime::App& app);

/// Runs two worker processes that exchange tensors back and forth, small ones for the latency, large ones for the
/// bandwidth, both ways at once. Error: whatever ends a job.
Expected<LinkCost> measure_link(const runtime::App& app);

}  // namespace troupe::calibrate
