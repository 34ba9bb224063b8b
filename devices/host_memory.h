// Host memory for devices that compute on the CPU, and for the simulated one.
#pragma once

#include <string>

#include "devices/device.h"

namespace troupe {

/// Zeroed memory at a 4 KiB boundary, in huge pages where it is large and the kernel grants them.
/// Pages cost nothing until touched. Error: `exhausted`, with the bytes asked for and the bytes that
/// the machine (or its cgroup) could give.
Expected<std::unique_ptr<Buffer>> allocate_host(std::size_t bytes);

/// Bytes that this process could still get: the kernel's MemAvailable, or what is left in a control group of the
/// process (version 1 or 2), at any level, if that is less. Page cache that a group can drop counts as left.
/// `root`: a prefix of /proc and /sys, for tests.
std::size_t available_host_bytes(const std::string& root = {});

}  // namespace troupe
