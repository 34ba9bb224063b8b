// A job waits until the agents of its machines have joined.
#pragma once

#include <vector>

#include "devices/base/clock.h"
#include "runtime/agents/agent_port.h"
#include "runtime/launch/app.h"

namespace troupe::runtime {

/// The agents of `machines.count` machines, by name: the same machines always have the same ranks. Agents of another
/// executable than `program` (program_fingerprint), or of a machine that is there already, are refused. None:
/// `interrupt_fd` has become readable before. Error (unavailable): fewer have joined within `machines.wait_s`.
Expected<std::vector<AgentPort::Joined>> gather_machines(AgentPort& port, const JobMachines& machines,
                                                         const std::string& program, int interrupt_fd,
                                                         const Clock& clock);

/// Error: the agent runs another executable than `program`.
Status check_program(const Joins& joins, const std::string& program);

/// Tells an agent, and the log, why it may not join.
void refuse(AgentPort::Joined& joined, const Status& why);
/// Tells an agent why it may not join now; it asks again.
void refuse_for_now(AgentPort::Joined& joined, const Status& why);

}  // namespace troupe::runtime
