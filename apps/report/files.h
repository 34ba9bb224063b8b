// The two things every report needs: a folder that can be written, and files that are whole or not there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "devices/base/status.h"

namespace troupe::report {

/// Creates `dir` with its parents where it is missing, and proves by writing that it can be written.
Status prepare_output_dir(const std::string& dir);

/// Whether a file survives a crash of the machine that comes after its writing.
enum class Durability { synced, not_synced };

/// Writes `path` by way of a temporary file and a rename: readers see the old file or the new one.
Status write_file(const std::string& path, std::string_view text, Durability durability = Durability::synced);

/// Moves those of `names` that are in `dir` to a new folder `dir`/earlier-N. Returns that folder's path; empty: there was none.
Expected<std::string> set_aside(const std::string& dir, const std::vector<std::string>& names);

/// Writes run.json. `json` must be one JSON value; it is written indented.
Status write_run_json(const std::string& path, const std::string& json, Durability durability = Durability::synced);

}  // namespace troupe::report
