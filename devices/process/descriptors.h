// How many files, pipes and sockets a process may have open.
#pragma once

#include <cstdint>

namespace troupe {

/// The most descriptors that this process may have open at a time (ulimit -n).
std::int64_t descriptors_max();

}  // namespace troupe
