// The two things every report needs: a folder that can be written, and files that are whole or not there.
#pragma once

#include <string>
#include <string_view>

#include "devices/base/status.h"

namespace troupe::report {

/// Creates `dir` with its parents where it is missing, and proves by writing that it can be written.
Status prepare_output_dir(const std::string& dir);

/// Writes `path` by way of a temporary file, fsync and rename: whoever looks sees the old file or the new one.
Status write_file(const std::string& path, std::string_view text);

/// Writes run.json. `json` must be one JSON value; it is written indented.
Status write_run_json(const std::string& path, const std::string& json);

}  // namespace troupe::report
