// Asks a job of another machine something, where its agents join.
#pragma once

#include <string>

#include "devices/base/status.h"
#include "runtime/agents/token.h"

namespace troupe::runtime {

/// The answer of the job that listens at HOST:PORT to a request as those of a JobSocket (runtime/launch/job_socket.h).
/// Waits for it, for `limit_s`. Error (`invalid`): that is no host and port;
/// (`unavailable`): no job with this token listens there, or it gives no answer.
Expected<std::string> ask_at_port(const std::string& address, const TokenKey& token, const std::string& request,
                                  int limit_s);

}  // namespace troupe::runtime
