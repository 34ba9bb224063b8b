// The error of a job that makes no progress: which workers do not answer, what the session and every actor wait for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "placement/mesh.h"

namespace troupe::runtime {

/// Who waits for what, as far as it is known. As stall_text.
std::string waits_text(const std::vector<std::int32_t>& places, const std::string& session_waits,
                       const std::map<Rank, std::string>& explanations);

/// `places`: the number of each rank's place. `explanations`: of those that have answered, by rank. `session_waits`:
/// Session::waits_for.
std::string stall_text(double stall_s, const std::vector<std::int32_t>& places, const std::string& session_waits,
                       const std::map<Rank, std::string>& explanations);

}  // namespace troupe::runtime
