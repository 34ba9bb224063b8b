// Host memory for devices that compute on the CPU, and for the simulated one.
#pragma once

#include <string>

#include "devices/device.h"

namespace troupe {

/// Zeroed memory at a 4 KiB boundary, in huge pages where it is large and the kernel grants them.
/// Pages cost nothing until touched. Error: `exhausted`, with the bytes asked for and the bytes that
/// the machine (or its cgroup) could give.
Expected<std::unique_ptr<Buffer>> allocate_host(std::size_t bytes);

/// As allocate_host, but the first `kept` bytes are those of the file `fd` (a memfd), which is made that long where it
/// is shorter: they outlive this process while another one has the file, and no process that this one forks sees them.
/// REQUIRES: `kept` is a multiple of 4 KiB and at most `bytes`.
Expected<std::unique_ptr<Buffer>> map_kept(int fd, std::size_t kept, std::size_t bytes);
/// What lies in such a file behind its first `from` bytes, which is made `bytes` long there where it is shorter; so it
/// stays when map_kept maps the front again. REQUIRES: `from` is a multiple of 4 KiB; `bytes` > 0.
Expected<std::unique_ptr<Buffer>> map_behind(int fd, std::size_t from, std::size_t bytes);
/// A file in memory for map_kept, which a child inherits only if told to (FD_CLOEXEC). Error: no descriptor is left.
Expected<int> create_kept_memory();

/// A name by which processes of the same user on this machine open the file `fd` of this process, while it has it open.
std::string kept_memory_name(int fd);
/// Opens such a file to write. Error: the process that has it is gone, or another user's.
Expected<int> open_kept_memory(const std::string& name);
/// All of such a file, to be read only.
Expected<std::unique_ptr<Buffer>> map_to_read(const std::string& name);

/// Bytes that this process could still get: the kernel's MemAvailable, or what is left in a control group of the
/// process (version 1 or 2), at any level, if that is less. Page cache that a group can drop counts as left.
/// `root`: a prefix of /proc and /sys, for tests.
std::size_t available_host_bytes(const std::string& root = {});

}  // namespace troupe
