// The last lines of a job's log, for processes that ask for them (job_socket.h): its own, and those of its workers on
// all machines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "devices/base/log.h"
#include "devices/base/status.h"

namespace troupe::runtime {

/// A request: the lines from a number on, which is behind it; below 0: the last ones.
inline constexpr std::string_view logs_request = "logs ";
/// Bytes of lines that a job keeps.
inline constexpr std::size_t job_log_bytes = std::size_t{256} << 10;

/// What the job answers with: as many of the lines as one answer holds. `number`: what is behind logs_request.
std::string answer_logs(std::string_view number);
/// Error (`invalid`): that is no such answer.
Expected<KeptLog> read_logs_answer(std::string_view answer);

}  // namespace troupe::runtime
