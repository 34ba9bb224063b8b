// How long a message between two workers on this machine takes in a job: actors and transport included.
#pragma once

#include "placement/cost.h"
#include "runtime/launch/app.h"

namespace troupe::calibrate {

struct MessageTimes {
  double handover_s = 0;  ///< CostModel::handover_s
  LinkCost link;
};

/// Registers the actors of measure_messages and of measure_machine_links. REQUIRES: called before serve_if_worker.
void register_actors(runtime::App& app);

/// Runs two worker processes that exchange tensors back and forth, small ones for the latency, large ones for the
/// bandwidth, both ways at once. Error: as App::run, with `code` its exit code; unavailable if other work keeps the
/// machine busy.
Expected<MessageTimes> measure_messages(const runtime::App& app, int& code);

}  // namespace troupe::calibrate
