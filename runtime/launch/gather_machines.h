// A job waits until the agents of its machines have joined.
#pragma once

#include <vector>

#include "devices/base/clock.h"
#include "runtime/agents/agent_port.h"
#include "runtime/launch/app.h"

namespace troupe::runtime {

/// The agents of `machines.count` machines, by name: the same machines always have the same ranks. Agents of another
/// executable, or of a machine that is there already, are refused. None: `interrupt_fd` has become readable before.
/// Error: fewer have joined within `machines.wait_s` (unavailable); the executable cannot be read.
Expected<std::vector<AgentPort::Joined>> gather_machines(AgentPort& port, const JobMachines& machines, int interrupt_fd,
                                                         const Clock& clock);

/// Tells an agent, and the log, why it may not join.
void refuse(AgentPort::Joined& joined, const Status& why);

}  // namespace troupe::runtime
