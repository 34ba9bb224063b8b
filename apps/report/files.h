// What every report needs: a folder that can be written, and files that are whole or not there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "devices/base/status.h"
#include "devices/base/storage.h"

namespace troupe::report {

/// Creates `dir` with its parents where it is missing, so that it survives a crash of the machine (make_durable_dir),
/// and tests by writing that it can be written; a signal that ends the process waits until that file is removed.
/// Removes such files of processes that were killed. Error: it cannot.
Status prepare_output_dir(Storage& storage, const std::string& dir);

/// Writes `path` by way of a temporary file and a rename: readers see the old file or the new one. A signal that ends
/// the process waits until the temporary file is renamed or removed. A link is followed; a device or a pipe is written
/// to and stays what it is. Error: of the disk; a pipe that no process reads.
Status write_file(const std::string& path, std::string_view text, Durability durability = Durability::synced);

/// Tests that write_file can write `path`, by making its temporary file and removing it. A device or a pipe is not
/// tested. Error: of the disk. REQUIRES: it is no folder.
Status check_writable(const std::string& path);

/// Moves those of `names` that are in `dir` to a new folder `dir`/earlier-N. Returns that folder's path; empty: `dir`
/// has none of them.
Expected<std::string> set_aside(const std::string& dir, const std::vector<std::string>& names);

/// Writes run.json, indented. Error: `json` is not one JSON value; of the disk.
Status write_run_json(const std::string& path, const std::string& json, Durability durability = Durability::synced);

}  // namespace troupe::report
